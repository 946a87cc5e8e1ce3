//! For tests of what happens when the process may open no more files.

use std::fs::File;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Set in the process of its own.
const OWN: &str = "SHARDWHEEL_TEST_OF_FEW_FILES";

/// True in a process of its own, which may open few files and in which this very test alone runs. Elsewhere: runs that
/// process, and fails if it does.
pub(crate) fn in_a_process_of_its_own(test: &str) -> bool {
    if std::env::var_os(OWN).is_some() {
        let maximum = getrlimit(Resource::Nofile).maximum;
        setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum }).unwrap();
        return true;
    }
    let mut own = Command::new(std::env::current_exe().unwrap());
    let status = own.args(["--exact", test, "--nocapture"]).env(OWN, "1").status().unwrap();
    assert!(status.success(), "the process of its own: {status}");
    false
}

/// Opens all the files that may still be opened.
pub(crate) fn take_all() -> Vec<File> {
    let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!files.is_empty(), "there is none left");
    files
}
