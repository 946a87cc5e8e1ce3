//! The command line.

use crate::workloads::{Job, Workload};
use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt as _;
use std::ffi::OsString;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

pub(crate) const HELP: &str = "\
Measures shardwheel beside what a user would otherwise build, in the same loops.

Usage: cargo bench --bench peers -- [options]

  --quick             small and few runs: minutes instead of hours
  --only LIST         these workloads, as rpc,heartbeat (default: all)
  --contenders LIST   these contenders, as shardwheel,tokio-sleep (default: all)
  --n LIST            these numbers of timers, as 100000,1000000 (default: each workload's own)
  --callers LIST      these numbers of calling threads, in schedule to heartbeat (default: 1,2)
  --shards N          of shardwheel and of delay-queue-shards (default: as many as cores)
  --operations N      of rpc and heartbeat, over all callers (default: as many as timers, within bounds)
  --runs N            the rounds of which the median is told (default: 5; quick: 3 of calls, else 1)
  --fast-hash         a fast hasher instead of SipHash, for all
  --out DIRECTORY     where the plots and the file of rows go (default: within target/)
  -h, --help          this text
";

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) fast_hash: bool,
    pub(crate) only: Vec<Workload>,
    /// Empty: all.
    pub(crate) contenders: Vec<String>,
    /// Empty: each workload's own.
    pub(crate) populations: Vec<usize>,
    pub(crate) callers: Vec<usize>,
    pub(crate) shards: Option<usize>,
    pub(crate) operations: Option<usize>,
    pub(crate) runs: Option<usize>,
    pub(crate) out: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Help,
    Measure(Options),
    /// In a process that the harness started: contender, whether keys are hashed fast, and what to do.
    Child(String, bool, Job),
}

/// # Errors
/// A sentence that names what is wrong.
pub(crate) fn parse(arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Result<Command, String> {
    let mut parser = lexopt::Parser::from_args(arguments);
    let mut options = Options {
        quick: false,
        fast_hash: false,
        only: Workload::ALL.to_vec(),
        contenders: Vec::new(),
        populations: Vec::new(),
        callers: vec![1, 2],
        shards: None,
        operations: None,
        runs: None,
        out: None,
    };
    while let Some(argument) = parser.next().map_err(|error| error.to_string())? {
        let name = match argument {
            Short('h') => return Ok(Command::Help),
            Short(letter) => return Err(format!("-{letter}: there is no such option; --help lists them")),
            Value(word) => return Err(format!("{}: what is it for? --help lists the options", word.display())),
            Long(name) => name,
        };
        let name = name.to_owned();
        let mut value = || parser.value().and_then(|value| value.string()).map_err(|error| error.to_string());
        match name.as_str() {
            "help" => return Ok(Command::Help),
            "quick" => options.quick = true,
            "fast-hash" => options.fast_hash = true,
            "only" => options.only = list(&name, &value()?, workload)?,
            "contenders" => options.contenders = list(&name, &value()?, |name| Ok(name.to_owned()))?,
            "n" => options.populations = list(&name, &value()?, count)?,
            "callers" => options.callers = list(&name, &value()?, few)?,
            "shards" => options.shards = Some(named(&name, &value()?, few)?),
            "operations" => options.operations = Some(named(&name, &value()?, count)?),
            "runs" => options.runs = Some(named(&name, &value()?, few)?),
            "out" => options.out = Some(value()?.into()),
            "child" => return child(&value()?, &options),
            _ => return Err(format!("--{name}: there is no such option; --help lists them")),
        }
    }
    let (fewest, most) = (options.populations.iter().min(), options.callers.iter().max());
    if let (Some(fewest), Some(most)) = (fewest, most)
        && fewest < most
    {
        return Err(format!("--n {fewest}: {most} callers have no timer each"));
    }
    Ok(Command::Measure(options))
}

fn list<T>(option: &str, text: &str, item: impl Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    text.split(',').map(|word| named(option, word, &item)).collect()
}

/// An error that names the option and its value.
fn named<T>(option: &str, word: &str, item: impl Fn(&str) -> Result<T, String>) -> Result<T, String> {
    item(word).map_err(|error| format!("--{option} {word}: {error}"))
}

fn count(word: &str) -> Result<usize, String> {
    up_to(100_000_000, word)
}

/// Of threads, shards or runs.
fn few(word: &str) -> Result<usize, String> {
    up_to(1024, word)
}

fn up_to(most: usize, word: &str) -> Result<usize, String> {
    let digits: String = word.chars().filter(|&letter| letter != '_').collect();
    let count = digits.parse().ok().filter(|count| (1..=most).contains(count));
    count.ok_or_else(|| format!("it must be 1 to {most}"))
}

fn workload(word: &str) -> Result<Workload, String> {
    let names = || Workload::ALL.map(Workload::name).join(", ");
    Workload::by_name(word).ok_or_else(|| format!("it must be one of {}", names()))
}

/// The arguments of a process that does `job`; [`parse`] reads them again.
pub(crate) fn child_arguments(contender: &str, fast_hash: bool, job: &Job) -> Vec<String> {
    let workloads: Vec<_> = job.workloads.iter().map(|workload| workload.name()).collect();
    let Job { population, callers, shards, operations, idle, .. } = job;
    let idle = idle.as_millis();
    let job = format!("{contender} {} {population} {callers} {operations} {idle}", workloads.join(","));
    let fast_hash = fast_hash.then(|| "--fast-hash".to_owned());
    let shards = shards.map(|count| format!("--shards={count}"));
    fast_hash.into_iter().chain(shards).chain(["--child".to_owned(), job]).collect()
}

fn child(text: &str, options: &Options) -> Result<Command, String> {
    let mut words = text.split(' ');
    let mut next = || words.next().ok_or_else(|| format!("{text}: too short"));
    let contender = next()?.to_owned();
    let workloads = list("child", next()?, workload)?;
    let job = Job {
        workloads,
        population: number(next()?)?,
        callers: number(next()?)?,
        shards: options.shards,
        operations: number(next()?)?,
        idle: Duration::from_millis(number(next()?)?),
    };
    Ok(Command::Child(contender, options.fast_hash, job))
}

fn number<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("{word}: not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_survives_its_way_as_arguments() {
        let job = Job {
            workloads: vec![Workload::Rpc, Workload::Heartbeat],
            population: 7,
            callers: 2,
            shards: Some(5),
            operations: 9,
            idle: Duration::from_secs(3),
        };
        let arguments = child_arguments("moka", true, &job);
        assert_eq!(parse(arguments), Ok(Command::Child("moka".to_owned(), true, job)));
    }

    #[test]
    fn wrong_options_are_named() {
        for (arguments, named) in [
            ("--n many", "--n many: "),
            ("--only rpc,nap", "--only nap: "),
            ("--n 1", "--n 1: "),
            ("--operations few", "--operations few: "),
            ("--runs 0", "--runs 0: "),
            ("--shards 1025", "--shards 1025: "),
            ("--slow", "--slow: "),
            ("-x", "-x: "),
            ("slow", "slow: "),
            ("--only nap", "--only nap: it must be one of schedule, "),
            ("--callers 2000", "--callers 2000: it must be 1 to 1024"),
        ] {
            let error = parse(arguments.split(' ')).expect_err(arguments);
            assert!(error.starts_with(named), "{error}");
        }
    }
}
