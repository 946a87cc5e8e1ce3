//! How many files, and so sockets, this process may have open.

/// Raises the limit as far as the system lets us, and returns the present limit; `None` if that is not known.
#[cfg(target_os = "linux")]
pub(crate) fn raise_limit() -> Option<u64> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // It is no failure if this is refused: then the limit stays where it is.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
    getrlimit(Resource::Nofile).current
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn raise_limit() -> Option<u64> {
    None
}
