//! The programs that steps need beside Rust, and the Debian packages that bring them.

use std::env;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::job::Job;

/// A program that a step needs.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Need {
    /// Its name, or a file's path where it is no program.
    program: &'static str,
    package: &'static str,
    step: &'static str,
    what_for: &'static str,
    /// Whether the step cannot run at all without it; else single tests skip themselves.
    whole_step: bool,
}

const NEEDS: [Need; 14] = [
    of_step("bpf", "clang", "clang", "compiles the kernel's programs"),
    of_step("bpf", "llvm-strip", "llvm", "takes what only a debugger reads from them"),
    of_step("bpf", "/usr/include/bpf/bpf_helpers.h", "libbpf-dev", "the kernel's own functions"),
    of_tests("test", "ip", "iproute2", "makes virtual devices in network namespaces"),
    of_tests("test", "tc", "iproute2", "makes such a device slow"),
    of_tests("test", "ethtool", "ethtool", "sets such a device's offloads"),
    of_tests("test", "/usr/lib/frr/zebra", "frr", "the routers beside which relays are measured"),
    of_tests("test", "pip3", "python3-pip", "fetches a library that issues a token"),
    of_tests("system", "ip", "iproute2", "makes virtual devices in network namespaces"),
    of_tests("system", "ethtool", "ethtool", "sets such a device's offloads"),
    of_tests("system", "setpriv", "util-linux", "starts a relay without privileges"),
    of_step("browser", "chromium", "chromium", "the browser that opens the web console"),
    of_step("browser", "chromedriver", "chromium-driver", "steers that browser"),
    of_step("dissector", "tshark", "tshark", "reads captured packets with the dissector"),
];

/// What a whole step needs.
const fn of_step(
    step: &'static str,
    program: &'static str,
    package: &'static str,
    what_for: &'static str,
) -> Need {
    Need { program, package, step, what_for, whole_step: true }
}

/// What some tests of a step need, which skip themselves without it.
const fn of_tests(
    step: &'static str,
    program: &'static str,
    package: &'static str,
    what_for: &'static str,
) -> Need {
    Need { whole_step: false, ..of_step(step, program, package, what_for) }
}

/// The words before `apt-get` with which we may install packages here, or why we may not.
pub(crate) type Installer = Result<&'static [&'static str], &'static str>;

/// Finds out what we may do on this machine.
pub(crate) fn installer(allowed: bool) -> Installer {
    if !allowed {
        Err("--no-install was given")
    } else if !on_path("apt-get") {
        Err("there is no apt-get here")
    } else if fs::metadata("/proc/self").is_ok_and(|us| us.uid() == 0) {
        Ok(&[])
    } else if succeeds("sudo", &["-n", "true"]) {
        Ok(&["sudo", "-n"])
    } else {
        Err("neither root nor sudo without a password")
    }
}

/// The command for `apt-get ARGS`, which asks nothing.
fn apt_get(before: &[&str], args: &[&str]) -> Command {
    let fixed =
        ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", "DPkg::Lock::Timeout=120"];
    let words = [before, &fixed, args].concat();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

/// What `steps` need and `has` does not find.
pub(crate) fn missing(steps: &[&str], has: impl Fn(&str) -> bool) -> Vec<&'static Need> {
    NEEDS.iter().filter(|need| steps.contains(&need.step) && !has(need.program)).collect()
}

/// Installs what is missing where it may; hands back what is missing still.
pub(crate) fn set_up(
    steps: &[&str],
    installer: Installer,
    job: &mut Job<'_>,
) -> Vec<&'static Need> {
    let wanted = missing(steps, is_here);
    if wanted.is_empty() {
        job.note("every program that these steps need is here");
        return wanted;
    }
    for need in &wanted {
        let Need { program, package, step, what_for, .. } = need;
        job.note(&format!("{step} needs {program} (Debian's {package}): {what_for}"));
    }
    match installer {
        Ok(before) => install(&wanted, before, job),
        Err(why) => job.note(&format!("installing nothing: {why}")),
    }
    missing(steps, is_here)
}

/// Why `step` must be left out, if it must.
pub(crate) fn left_out(step: &str, missing: &[&Need]) -> Option<String> {
    let of_step = |need: &&&Need| need.step == step && need.whole_step;
    let needs: Vec<&&Need> = missing.iter().filter(of_step).collect();
    if needs.is_empty() {
        return None;
    }
    let programs: Vec<_> = needs.iter().map(|need| need.program).collect();
    let mut packages: Vec<_> =
        NEEDS.iter().filter(|need| need.step == step).map(|need| need.package).collect();
    packages.dedup();
    Some(format!("{} missing; install Debian's {}", programs.join(", "), packages.join(" ")))
}

/// All at once, and one by one if that fails: one package that is not to be had must not cost the others.
fn install(wanted: &[&Need], before: &[&str], job: &mut Job<'_>) {
    let mut packages: Vec<&str> = wanted.iter().map(|need| need.package).collect();
    packages.sort_unstable();
    packages.dedup();
    let mut apt_get = |args: &[&str]| -> bool {
        let done = job.run(apt_get(before, args));
        if let Err(error) = &done {
            job.note(&format!("{error:#}"));
        }
        done.is_ok()
    };
    // A failed update is no end: older lists may still do.
    apt_get(&["-q", "update"]);
    let options = ["-q", "install", "-y", "--no-install-recommends"];
    if apt_get(&[&options[..], &packages].concat()) || packages.len() == 1 {
        return;
    }
    for package in packages {
        apt_get(&[&options[..], &[package]].concat());
    }
}

fn is_here(program: &str) -> bool {
    if program.starts_with('/') { Path::new(program).exists() } else { on_path(program) }
}

/// Whether a program of this name can be started.
pub(crate) fn on_path(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).map(|folder| folder.join(program)).any(|file| is_executable(&file))
}

fn is_executable(file: &Path) -> bool {
    fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

/// Whether a command runs and ends well; nothing of what it says is shown.
pub(crate) fn succeeds(program: &str, args: &[&str]) -> bool {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::spelled;

    fn programs(needs: &[&Need]) -> Vec<&'static str> {
        needs.iter().map(|need| need.program).collect()
    }

    #[test]
    fn only_what_the_chosen_steps_need_is_missed() {
        assert_eq!(
            programs(&missing(&["browser", "fmt"], |_| false)),
            ["chromium", "chromedriver"]
        );
        assert_eq!(programs(&missing(&["fmt", "clippy"], |_| false)), [""; 0]);
        assert_eq!(
            programs(&missing(&["browser", "dissector"], |name| name == "chromium")),
            ["chromedriver", "tshark"]
        );
    }

    #[test]
    fn a_step_is_left_out_with_what_to_install() {
        let needs = missing(&["browser", "dissector"], |name| name == "chromedriver");
        assert_eq!(
            left_out("browser", &needs).unwrap(),
            "chromium missing; install Debian's chromium chromium-driver"
        );
        assert_eq!(
            left_out("dissector", &needs).unwrap(),
            "tshark missing; install Debian's tshark"
        );
        assert_eq!(left_out("fmt", &needs), None);
        let needs = missing(&["bpf", "test"], |_| false);
        assert_eq!(left_out("test", &needs), None, "only some of its tests need these");
        assert_eq!(
            left_out("bpf", &needs).unwrap(),
            "clang, llvm-strip, /usr/include/bpf/bpf_helpers.h missing; \
             install Debian's clang llvm libbpf-dev"
        );
    }

    #[test]
    fn apt_get_asks_nothing() {
        assert_eq!(
            spelled(&apt_get(&["sudo", "-n"], &["install", "tshark"])),
            "sudo -n env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=120 install tshark"
        );
        assert_eq!(apt_get(&[], &["update"]).get_program(), "env");
        assert!(installer(false).is_err());
    }

    #[test]
    fn programs_are_looked_for_on_the_path() {
        assert!(on_path("sh"));
        assert!(!on_path("no-such-program-anywhere"));
    }

    #[test]
    fn every_need_is_that_of_a_step() {
        for need in &NEEDS {
            assert!(crate::steps::ALL.iter().any(|step| step.name == need.step), "{need:?}");
        }
    }
}
