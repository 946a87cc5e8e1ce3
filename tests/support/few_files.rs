//! For tests of what happens when the process may open no more files.

use std::fs::File;
use std::process::Command;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Set in the child process.
const OWN: &str = "SHARDWHEEL_TEST_OF_FEW_FILES";

/// True in a child process, which may open few files and in which only this test runs. In the parent: runs that child
/// process, fails if it does, and returns false.
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

/// Opens files until no more can be opened.
pub(crate) fn take_all() -> Vec<File> {
    let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    assert!(!files.is_empty(), "there is none left");
    files
}
