//! The parts of the example `sessions`, on logs that are made here.

#[path = "../examples/sessions/access_log.rs"]
mod access_log;
#[path = "../examples/sessions/options.rs"]
mod options;
#[path = "../examples/sessions/replay.rs"]
mod replay;

use std::collections::BTreeMap;
use std::error::Error;
use std::io::{self, Write};
use std::time::Duration;

use access_log::{Log, parse_line};
use flate2::Compression;
use flate2::write::GzEncoder;
use options::{Command, parse_timeout};

/// 17 May 2015, 10:00:00 UTC, in Unix seconds.
const TEN: i64 = 1_431_856_800;
const TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// A line of `client` at a time such as `10:05:03`, on 17 May 2015, UTC.
fn line(client: &str, time: &str) -> String {
    dated(client, &format!("17/May/2015:{time} +0000"))
}

fn dated(client: &str, date: &str) -> String {
    format!(
        "{client} - - [{date}] \"GET /a?b=\\\"c\\\" HTTP/1.1\" 200 2326 \
         \"http://example.com/\" \"Mozilla/5.0 (X11; [en])\"\n"
    )
}

fn log(text: &str) -> Log {
    Log::read(text.as_bytes()).unwrap()
}

fn gzip(text: &str) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text.as_bytes()).unwrap();
    encoder.finish().unwrap()
}

/// What the example prints, with ends in seconds after `TEN`.
fn sessions(log: &Log) -> Vec<(i64, String, u64)> {
    let mut sessions = Vec::new();
    let requests = log.requests.iter().copied();
    let count = replay::replay(&log.clients, requests, TIMEOUT, |session| {
        let client = String::from_utf8_lossy(session.client).into_owned();
        sessions.push((session.end - TEN, client, session.requests));
        Ok(())
    });
    assert_eq!(count.unwrap(), sessions.len() as u64);
    sessions
}

fn session(end: i64, client: &str, requests: u64) -> (i64, String, u64) {
    (end, client.to_owned(), requests)
}

#[test]
fn a_session_ends_exactly_one_timeout_after_its_last_request() {
    let log = log(&[line("a", "10:00:00"), line("a", "10:29:59"), line("b", "10:00:07")].concat());
    let expected = [session(7 + 1800, "b", 1), session(1799 + 1800, "a", 2)];
    assert_eq!(sessions(&log), expected);
}

#[test]
fn a_request_at_the_instant_of_the_end_opens_a_new_session() {
    let log = log(&[line("a", "10:00:00"), line("a", "10:30:00")].concat());
    let expected = [session(1800, "a", 1), session(3600, "a", 1)];
    assert_eq!(sessions(&log), expected);
}

#[test]
fn sessions_of_one_second_are_in_the_order_of_their_clients() {
    let clients = ["c", "a", "b", "10.0.0.2", "::1"];
    let text: String = clients.map(|client| line(client, "10:00:00")).concat();
    let order: Vec<_> = sessions(&log(&text)).into_iter().map(|(_, client, _)| client).collect();
    assert_eq!(order, ["10.0.0.2", "::1", "a", "b", "c"]);
}

#[test]
fn the_order_of_lines_does_not_matter() {
    let mut lines = [
        line("a", "10:00:00"),
        line("b", "10:00:30"),
        line("a", "10:20:00"),
        line("b", "11:00:30"),
        line("a", "10:49:59"),
        line("c", "12:00:00"),
    ];
    let in_order = log(&lines.concat());
    assert_eq!(in_order.out_of_order, 1);
    let expected = sessions(&in_order);
    assert_eq!(expected[1], session(2999 + 1800, "a", 3));
    lines.reverse();
    let reversed = log(&lines.concat());
    assert_eq!(reversed.out_of_order, 5);
    assert_eq!(sessions(&reversed), expected);
}

#[test]
fn gzip_and_plain_are_told_apart_by_their_content() {
    let lines = [line("a", "10:00:00"), line("a", "10:00:01"), line("b", "10:00:02")];
    let plain = sessions(&log(&lines.concat()));
    let compressed = Log::read(&gzip(&lines.concat())[..]).unwrap();
    assert_eq!(sessions(&compressed), plain);
    let joined = [gzip(&lines[..1].concat()), gzip(&lines[1..].concat())].concat();
    assert_eq!(sessions(&Log::read(&joined[..]).unwrap()), plain);
}

#[test]
fn a_damaged_gzip_file_is_an_error() {
    let mut compressed = gzip(&line("a", "10:00:00").repeat(100));
    compressed.truncate(compressed.len() / 2);
    Log::read(&compressed[..]).unwrap_err();
}

#[test]
fn an_empty_file_has_no_sessions() {
    for empty in [log(""), Log::read(&gzip("")[..]).unwrap()] {
        assert_eq!((empty.lines, empty.malformed), (0, 0));
        assert_eq!(sessions(&empty), []);
    }
}

#[test]
fn malformed_lines_are_counted_and_skipped() {
    let good = line("a", "10:00:00");
    let malformed = [
        "\n",
        "not a log line\n",
        "\u{1f}\u{8b} \0\n",
        &good.replace(" - - ", " - "),
        &good.replace("a - -", "\t - -"),
        &good.replace("a - -", " - -"),
        &good.replace("17/May", "32/May"),
        &good.replace("17/May", "31/Jun"),
        &good.replace("17/May", "17/may"),
        &good.replace("10:00:00", "24:00:00"),
        &good.replace("10:00:00", "10:60:00"),
        &good.replace("10:00:00", "10:00:61"),
        &good.replace("+0000", "0000"),
        &good.replace("+0000", "*0000"),
        &good.replace("2015:", "+015:"),
        &good.replace(" 200 ", " abc "),
        &good.replace(" 200 ", "200 "),
        &good[..good.find("HTTP").unwrap()],
    ];
    let text = malformed.concat() + "\n" + &good;
    let log = log(&text);
    assert_eq!(log.malformed, malformed.len() as u64);
    assert_eq!(log.lines, log.malformed + 1);
    assert_eq!(sessions(&log), [session(1800, "a", 1)]);
}

#[test]
fn a_line_cut_off_after_its_status_still_counts() {
    let good = line("a", "10:00:00");
    for cut in [" 2326", " \"http", "Mozilla", "\n"] {
        let cut = &good[..good.find(cut).unwrap()];
        assert_eq!(parse_line(cut.as_bytes()), Some((&b"a"[..], TEN)), "{cut}");
    }
}

#[test]
fn unusual_lines_are_read() {
    let good = line("2001:db8::1", "10:00:00");
    let unusual = [
        good.replace(" - - ", " - John [x] Smith "),
        good.replace("\n", "\r\n"),
        good.replace(" 200 ", " - "),
        good.replace("GET /a?b=\\\"c\\\" HTTP/1.1", ""),
        good.replace("GET /a", "GET /] \\\"\\\\"),
        good.replace("\n", " 1234 extra\n"),
    ];
    let log = log(&unusual.concat());
    assert_eq!((log.lines, log.malformed), (6, 0));
    assert_eq!(sessions(&log), [session(1800, "2001:db8::1", 6)]);
}

#[test]
fn lines_need_be_neither_short_nor_text() {
    let mut text = b"x".repeat(3 << 20);
    text.extend_from_slice(b"\n\xff\xfe - - ");
    text.extend_from_slice(line("", "10:00:00").replacen(" - - ", "", 1).as_bytes());
    let log = Log::read(&text[..]).unwrap();
    assert_eq!((log.lines, log.malformed), (2, 1));
    assert_eq!(&*log.clients[0], b"\xff\xfe");
}

#[test]
fn dates_are_read_with_their_zone_and_leap_days() {
    let dates = [
        ("01/Jan/1970:00:00:00 +0000", 0),
        ("01/Jan/1970:00:00:00 +0100", -3600),
        ("17/May/2015:12:00:00 +0200", TEN),
        ("17/May/2015:04:30:00 -0530", TEN),
        ("29/Feb/2000:00:00:00 +0000", 951_782_400),
        ("29/Feb/2016:23:59:59 +0000", 1_456_790_399),
        ("01/Mar/2100:00:00:00 +0000", 4_107_542_400),
        ("31/Dec/2016:23:59:60 +0000", 1_483_228_800),
        ("31/Dec/2400:23:59:59 +0000", 13_601_087_999),
    ];
    for (date, unix_seconds) in dates {
        let line = dated("a", date);
        assert_eq!(parse_line(line.as_bytes()), Some((&b"a"[..], unix_seconds)), "{date}");
    }
    for date in ["29/Feb/2015", "29/Feb/2100", "00/Jan/2015", "17/May/1969", "17/May/2401", "17/May/0015"] {
        let line = dated("a", &format!("{date}:00:00:00 +0000"));
        assert_eq!(parse_line(line.as_bytes()), None, "{date}");
    }
}

#[test]
fn a_log_may_span_centuries() {
    let dates = ["01/Jan/1970:00:00:00 +0000", "31/Dec/2400:23:59:59 +0000"];
    let log = log(&dates.map(|date| dated("a", date)).concat());
    let ends: Vec<_> = sessions(&log).into_iter().map(|(end, ..)| end + TEN).collect();
    assert_eq!(ends, [1800, 13_601_087_999 + 1800]);
}

/// The sessions by their definition, computed for each client on its own.
fn by_hand(requests: &[(i64, &str)]) -> Vec<(i64, String, u64)> {
    let timeout = TIMEOUT.as_secs() as i64;
    let mut times: BTreeMap<&str, Vec<i64>> = BTreeMap::new();
    for &(time, client) in requests {
        times.entry(client).or_default().push(time);
    }
    let mut sessions = Vec::new();
    for (client, mut times) in times {
        times.sort_unstable();
        for visit in times.chunk_by(|before, after| after - before < timeout) {
            let end = visit[visit.len() - 1] + timeout;
            sessions.push(session(end, client, visit.len() as u64));
        }
    }
    sessions.sort_unstable();
    sessions
}

#[test]
fn many_requests_give_the_sessions_that_a_count_by_hand_gives() {
    let clients = ["a", "b", "c", "d", "e", "f", "g"];
    let mut random = 1_u64;
    let mut below = |bound: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % bound
    };
    let requests: Vec<(i64, &str)> =
        (0..2000).map(|_| (below(14 * 60) as i64 * 60, clients[below(7) as usize])).collect();
    let text: String = requests
        .iter()
        .map(|&(time, client)| {
            let (hour, minute) = (10 + time / 3600, time / 60 % 60);
            line(client, &format!("{hour:02}:{minute:02}:00"))
        })
        .collect();
    assert_eq!(sessions(&log(&text)), by_hand(&requests));
}

#[test]
fn an_output_that_fails_ends_the_replay() {
    let log = log(&line("a", "10:00:00"));
    let requests = log.requests.iter().copied();
    let result: Result<u64, Box<dyn Error>> =
        replay::replay(&log.clients, requests, TIMEOUT, |_| Err(io::ErrorKind::BrokenPipe.into()));
    let error = result.unwrap_err().downcast::<io::Error>().unwrap();
    assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
}

#[test]
fn timeouts_are_read() {
    let accepted = [("90", 90), ("90s", 90), ("30m", 1800), ("1h", 3600), ("1d", 86_400), ("36500d", 36_500 * 86_400)];
    for (text, seconds) in accepted {
        assert_eq!(parse_timeout(text), Ok(Duration::from_secs(seconds)), "{text}");
    }
    let refused = ["", "0", "0m", "m", "-5m", "+5m", "1.5h", "5 m", "5x", "500ms", "36501d"];
    for text in refused.into_iter().chain(["99999999999999999999", "9999999999999999999d"]) {
        let error = parse_timeout(text).unwrap_err();
        assert!(error.contains(&format!("--timeout: '{text}'")), "{error}");
    }
}

#[test]
fn the_command_line_is_read() {
    let replay = |file: &str, timeout| Ok(Command::Replay { file: file.into(), timeout });
    assert_eq!(options::parse(["log"]), replay("log", TIMEOUT));
    assert_eq!(options::parse(["-", "--timeout=1m"]), replay("-", Duration::from_secs(60)));
    assert_eq!(options::parse(["log", "-h"]), Ok(Command::Help));
    for refused in [&["--timeout", "0", "log"][..], &[], &["a", "b"], &["--nope", "a"]] {
        options::parse(refused).unwrap_err();
    }
}

#[test]
fn the_help_tells_every_option() {
    for option in ["FILE", "--timeout", "--help"] {
        assert!(options::HELP.contains(option), "{option}");
    }
}
