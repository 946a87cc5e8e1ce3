//! Reads an access log in Combined Log Format, plain or gzip, into requests in the order of time.
//!
//! A line is `client ident user [time] "request" status bytes "referer" "user agent"`. Sessions need the client and the
//! time. What follows the status is not looked at, so a line that is cut off there still counts. A line that does not
//! reach that far is malformed: counted, never fatal.
//!
//! Servers write a line when the answer is out, but date it when the request came in, so no real log is in order. The
//! requests are therefore sorted before they are replayed: so sessions do not depend on the order of lines, however
//! late a line comes. That costs 16 bytes per request.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::MultiGzDecoder;

/// The longest line that is looked at; the rest of a longer one is skipped, not stored.
const LINE_BYTES_MAX: u64 = 1 << 20;
const BUFFER_BYTES: usize = 1 << 16;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// A client's place in [`Log::clients`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ClientId(pub(crate) usize);

/// One request: Unix seconds, and the client it came from.
pub(crate) type Request = (i64, ClientId);

/// What a log holds.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// The first field of the lines, as bytes: logs promise no encoding.
    pub(crate) clients: Vec<Rc<[u8]>>,
    /// In the order of time; those of one second in the order of the file.
    pub(crate) requests: Vec<Request>,
    pub(crate) lines: u64,
    pub(crate) malformed: u64,
    /// Requests dated before one on an earlier line.
    pub(crate) out_of_order: u64,
}

impl Log {
    /// Reads `input` to its end.
    ///
    /// # Errors
    /// When `input` cannot be read or is a damaged gzip file. No line is an error.
    pub(crate) fn read(input: impl Read) -> io::Result<Self> {
        let mut input = decompressed(input)?;
        let mut log = Self::default();
        let mut ids = HashMap::new();
        let mut newest = i64::MIN;
        let mut line = Vec::new();
        while next_line(&mut input, &mut line)? {
            log.lines += 1;
            let Some((client, time)) = parse_line(&line) else {
                log.malformed += 1;
                continue;
            };
            log.out_of_order += u64::from(time < newest);
            newest = newest.max(time);
            let id = client_id(&mut log.clients, &mut ids, client);
            log.requests.push((time, id));
        }
        // Stable, so that equal seconds keep the order of the file.
        log.requests.sort_by_key(|&(time, _)| time);
        Ok(log)
    }
}

/// The text of `input`, whether or not it is compressed; the file's name does not matter.
fn decompressed<'a>(mut input: impl Read + 'a) -> io::Result<BufReader<Box<dyn Read + 'a>>> {
    let mut magic = Vec::new();
    input.by_ref().take(2).read_to_end(&mut magic)?;
    let gzip = magic == GZIP_MAGIC;
    let input = BufReader::with_capacity(BUFFER_BYTES, Cursor::new(magic).chain(input));
    let text: Box<dyn Read + 'a> = if gzip {
        // Multi: rotated logs are often several gzip files in a row.
        Box::new(MultiGzDecoder::new(input))
    } else {
        Box::new(input)
    };
    Ok(BufReader::with_capacity(BUFFER_BYTES, text))
}

/// Puts the next line into `line`, without its end; false at the end of the input.
fn next_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> io::Result<bool> {
    line.clear();
    let mut bounded = input.by_ref().take(LINE_BYTES_MAX);
    let read = bounded.read_until(b'\n', line)?;
    if line.ends_with(b"\n") {
        let end = if line.ends_with(b"\r\n") { 2 } else { 1 };
        line.truncate(line.len() - end);
    } else if bounded.limit() == 0 {
        input.skip_until(b'\n')?;
    }
    Ok(read > 0)
}

fn client_id(clients: &mut Vec<Rc<[u8]>>, ids: &mut HashMap<Rc<[u8]>, ClientId>, client: &[u8]) -> ClientId {
    if let Some(&id) = ids.get(client) {
        return id;
    }
    let id = ClientId(clients.len());
    let name = Rc::<[u8]>::from(client);
    clients.push(Rc::clone(&name));
    ids.insert(name, id);
    id
}

/// The client of a line and its time in Unix seconds; `None` if the line is malformed.
pub(crate) fn parse_line(line: &[u8]) -> Option<(&[u8], i64)> {
    // A user's name may hold spaces and brackets, but servers escape its quotes: only the
    // time ends in `] "`.
    let time_end = position(line, b"] \"")?;
    let (head, time) = split_last(&line[..time_end], TIME_LEN)?;
    let client = client_of(head.strip_suffix(b" [")?)?;
    let time = unix_seconds(time)?;
    let tail = after_quoted(&line[time_end + 3..])?;
    has_status(tail.strip_prefix(b" ")?).then_some((client, time))
}

/// The first of `client ident user`.
fn client_of(head: &[u8]) -> Option<&[u8]> {
    let mut fields = head.splitn(3, |&byte| byte == b' ');
    let client = fields.next()?;
    let complete =
        fields.next().is_some_and(|ident| !ident.is_empty()) && fields.next().is_some_and(|user| !user.is_empty());
    // A control character in a name would break the lines that we print.
    let printable = !client.is_empty() && !client.iter().any(u8::is_ascii_control);
    (complete && printable).then_some(client)
}

/// What follows the closing quote of a text, which begins after its opening quote.
fn after_quoted(text: &[u8]) -> Option<&[u8]> {
    let mut escaped = false;
    for (index, &byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return Some(&text[index + 1..]),
            _ => {}
        }
    }
    None
}

/// Whether `tail` begins with a status: three digits, or `-` for a request never answered.
fn has_status(tail: &[u8]) -> bool {
    let status = tail.split(|&byte| byte == b' ').next().unwrap_or_default();
    status == b"-" || (status.len() == 3 && number(status).is_some())
}

/// A line dated outside of these was damaged, or written by a clock that was never set. 430 years and the longest
/// timeout are within the 584 years that a scheduler's clock covers.
const YEARS: (i64, i64) = (1970, 2400);
const TIME_LEN: usize = "17/May/2015:10:05:03 +0000".len();

/// Unix seconds of a time such as `17/May/2015:10:05:03 +0200`.
/// A leap second (`:60`) is the second after it, as in Unix time.
fn unix_seconds(time: &[u8]) -> Option<i64> {
    let separators = [(2, b'/'), (6, b'/'), (11, b':'), (14, b':'), (17, b':'), (20, b' ')];
    if time.len() != TIME_LEN || separators.iter().any(|&(at, byte)| time[at] != byte) {
        return None;
    }
    let year = within(number(&time[7..11])?, YEARS.0, YEARS.1)?;
    let month = month(&time[3..6])?;
    let day = within(number(&time[..2])?, 1, days_in_month(year, month))?;
    let hour = within(number(&time[12..14])?, 0, 23)?;
    let minute = within(number(&time[15..17])?, 0, 59)?;
    let second = within(number(&time[18..20])?, 0, 60)?;
    let local = ((days_since_epoch(year, month, day) * 24 + hour) * 60 + minute) * 60 + second;
    Some(local - utc_offset_seconds(&time[21..])?)
}

/// Seconds that a zone such as `+0200` is ahead of UTC.
fn utc_offset_seconds(zone: &[u8]) -> Option<i64> {
    let hours = within(number(&zone[1..3])?, 0, 23)?;
    let minutes = within(number(&zone[3..5])?, 0, 59)?;
    let seconds = (hours * 60 + minutes) * 60;
    match zone[0] {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

/// 1 to 12.
fn month(name: &[u8]) -> Option<i64> {
    const NAMES: &[u8] = b"JanFebMarAprMayJunJulAugSepOctNovDec";
    let index = NAMES.chunks(3).position(|month| month == name)?;
    i64::try_from(index + 1).ok()
}

fn days_in_month(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1 January 1970 in the Gregorian calendar (Hinnant, "chrono-Compatible Low-Level Date
/// Algorithms", `days_from_civil`): years begin in March, so that a leap day comes last.
fn days_since_epoch(year: i64, month: i64, day: i64) -> i64 {
    const EPOCH: i64 = 719_468;
    let year = if month <= 2 { year - 1 } else { year };
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let leap_days = year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400);
    year * 365 + leap_days + day_of_year - EPOCH
}

fn within(value: i64, least: i64, most: i64) -> Option<i64> {
    (least..=most).contains(&value).then_some(value)
}

/// `digits` as a number; `None` if there is anything but digits, even a sign.
fn number(digits: &[u8]) -> Option<i64> {
    digits.iter().try_fold(0, |value, &byte| byte.is_ascii_digit().then(|| value * 10 + i64::from(byte - b'0')))
}

fn position(text: &[u8], sought: &[u8]) -> Option<usize> {
    text.windows(sought.len()).position(|window| window == sought)
}

/// `text` without its last `count` bytes, and those.
fn split_last(text: &[u8], count: usize) -> Option<(&[u8], &[u8])> {
    text.split_at_checked(text.len().checked_sub(count)?)
}
