//! Processors, and the time spent on them.

use canopy_wire::Suite;
use rustix::process::{
    Pid, Resource, Rlimit, Signal, getrlimit, kill_process, nice, set_parent_process_death_signal,
    setrlimit,
};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::Duration;

/// The processors that this process may run on, by number.
pub fn available_processors() -> Vec<usize> {
    match sched_getaffinity(None) {
        Ok(set) => (0..CpuSet::MAX_CPU).filter(|processor| set.is_set(*processor)).collect(),
        Err(_) => vec![0],
    }
}

/// Whether the processor has instructions for AES; without them ChaCha20 is cheaper.
pub fn has_aes() -> bool {
    #[cfg(target_arch = "x86_64")]
    return std::arch::is_x86_feature_detected!("aes");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes");
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    return false;
}

/// The [suites](Suite::bit) that the processor has no instructions for.
pub fn slow_suites() -> u8 {
    if has_aes() { 0 } else { Suite::Aes128Gcm.bit() }
}

/// Keeps the calling thread, and threads and processes that it starts later, on one processor.
///
/// # Errors
/// What the kernel says, for example if there is no such processor.
pub fn pin_thread(processor: usize) -> io::Result<()> {
    if processor >= CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = CpuSet::new();
    set.set(processor);
    Ok(sched_setaffinity(None, &set)?)
}

/// Asks a process that this one has started to end (`SIGTERM`).
///
/// # Errors
/// If it has ended already.
pub fn ask_to_end(child: &Child) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::TERM)?)
}

/// Asks a process that this one has started to read its settings again (`SIGHUP`).
///
/// # Errors
/// If it has ended already.
pub fn ask_to_reload(child: &Child) -> io::Result<()> {
    Ok(kill_process(Pid::from_child(child), Signal::HUP)?)
}

/// Lets other processes go first from now on: by so many steps of niceness, 1 to 19.
///
/// # Errors
/// What the kernel says.
pub fn be_nice(steps: u8) -> io::Result<()> {
    nice(steps.into())?;
    Ok(())
}

/// Processor time of the calling thread, in nanosecond resolution.
pub fn thread_cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Processor time of all threads of a process so far, in nanosecond resolution.
///
/// # Errors
/// If there is no such process.
pub fn process_cpu_time(process: u32) -> io::Result<Duration> {
    let mut clock = 0;
    // SAFETY: the call writes one clock id.
    let error = unsafe { libc::clock_getcpuclockid(process as libc::pid_t, &mut clock) };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// Raises the soft limit of open files to the hard one, for crowds with a socket each. Returns
/// the limit then in force.
pub fn raise_open_files() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    let in_force = if raised.is_ok() { limit.maximum } else { limit.current };
    in_force.unwrap_or(u64::MAX)
}

/// The process that `command` starts is killed when the thread that started it ends, however it
/// ends: nothing is left behind by a parent that could not clean up.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let bind = || Ok(set_parent_process_death_signal(Some(Signal::KILL))?);
    // SAFETY: between fork and exec only the one system call is made; it allocates nothing.
    unsafe { command.pre_exec(bind) }
}
