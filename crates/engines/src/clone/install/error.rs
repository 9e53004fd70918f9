//! Why an installation failed.

use aya::programs::ProgramError;
use std::io;
use std::path::Path;

/// Why an installation failed.
#[derive(Debug, thiserror::Error)]
pub enum InstallError {
    /// There is no such device, or it is not one that packets can be cloned on.
    #[error("{0}")]
    Device(String),
    /// A capability is missing.
    #[error(
        "{what} was refused ({error}); installing and removing engines needs CAP_BPF, \
         CAP_NET_ADMIN, CAP_PERFMON and, to mount their folder, CAP_SYS_ADMIN: {}",
        privilege_remedy()
    )]
    Privilege {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        error: io::Error,
    },
    /// The kernel lacks something.
    #[error("{what}: {error}{remedy}")]
    Kernel {
        /// What was tried.
        what: &'static str,
        /// What it said.
        error: String,
        /// What may be done about it, or nothing.
        remedy: &'static str,
    },
    /// The kernel does not take a program.
    #[error("the kernel's verifier rejects the program {program}:\n{log}")]
    Rejected {
        /// Which.
        program: String,
        /// The verifier's log.
        log: String,
    },
    /// The device has an installation already.
    #[error(
        "the engines are installed on {0} already; remove them first: canopy engine remove --device {0}"
    )]
    Present(String),
    /// Something about the files.
    #[error("{what}: {error}")]
    Files {
        /// What was tried.
        what: String,
        /// What the system said.
        error: io::Error,
    },
}

/// What to do about a missing privilege: root itself may have been left with less.
fn privilege_remedy() -> &'static str {
    if is_root() {
        "this is root, but without all of them, or something else forbids it; look at what \
         restricts it (a container, a security module)"
    } else {
        "run it as root"
    }
}

pub(super) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

pub(super) fn files(path: &Path, what: &str, error: io::Error) -> InstallError {
    InstallError::Files { what: format!("{what} {}", path.display()), error }
}

pub(super) fn not_removed(path: &Path, error: io::Error) -> InstallError {
    if error.kind() == io::ErrorKind::PermissionDenied {
        return InstallError::Privilege { what: "removing what is installed", error };
    }
    files(path, "cannot remove", error)
}

pub(super) fn kernel<T, E: std::error::Error + 'static>(
    what: &'static str,
    result: Result<T, E>,
) -> Result<T, InstallError> {
    result.map_err(|error| lacking(what, &error))
}

/// What the kernel did not do.
pub(super) fn lacking(
    what: &'static str,
    error: &(dyn std::error::Error + 'static),
) -> InstallError {
    let remedy = match source_errno(error).and_then(|error| error.raw_os_error()) {
        Some(libc::EBUSY) => "; somebody else has attached to it, see `bpftool net`",
        Some(libc::ENOMEM | libc::ENOSPC | libc::EMFILE | libc::ENFILE) => "",
        _ => "; the clone engines need Linux 6.6 with BPF and BTF",
    };
    InstallError::Kernel { what, error: chain(error), remedy }
}

pub(super) fn rejected(program: &str, error: &ProgramError) -> InstallError {
    let program = program.to_owned();
    match error {
        ProgramError::LoadError { verifier_log, .. } if !verifier_log.to_string().is_empty() => {
            InstallError::Rejected { program, log: verifier_log.to_string() }
        }
        // Without a log it did not get as far as the verifier.
        ProgramError::LoadError { io_error, .. }
            if io_error.kind() == io::ErrorKind::PermissionDenied =>
        {
            let error = io::Error::from(io_error.kind());
            InstallError::Privilege { what: "loading the programs", error }
        }
        _ => lacking("loading a program", error),
    }
}

/// An error and what caused it.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}

pub(super) fn source_errno(error: &(dyn std::error::Error + 'static)) -> Option<io::Error> {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.raw_os_error().map(io::Error::from_raw_os_error);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_kernel_lacks_is_told_from_what_it_forbids() {
        let refused = |kind: i32| ProgramError::LoadError {
            io_error: io::Error::from_raw_os_error(kind),
            verifier_log: aya_obj::VerifierLog::new(String::new()),
        };
        let error = rejected("clone_to_members", &refused(libc::EINVAL));
        assert!(matches!(error, InstallError::Kernel { .. }), "{error}");
        let error = rejected("clone_to_members", &refused(libc::EPERM));
        assert!(matches!(error, InstallError::Privilege { .. }), "{error}");
        let no_tcx: Result<(), _> = Err(io::Error::from_raw_os_error(libc::EINVAL));
        let error = kernel("attaching to the device's egress (tcx)", no_tcx).unwrap_err();
        assert!(error.to_string().contains("Linux 6.6"), "{error}");
    }
}
