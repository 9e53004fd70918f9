//! Processors, and the time spent on them.

use std::io;
use std::mem;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

/// The processors that this process may run on, by number.
pub fn available_processors() -> Vec<usize> {
    // SAFETY: an all-zero cpu_set_t is an empty set; the call writes at most its size.
    let set = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        if libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) != 0 {
            return vec![0];
        }
        set
    };
    // SAFETY: the numbers are below the set's size.
    (0..libc::CPU_SETSIZE as usize).filter(|cpu| unsafe { libc::CPU_ISSET(*cpu, &set) }).collect()
}

/// Keeps the calling thread, and threads and processes that it starts later, on one processor.
///
/// # Errors
/// What the kernel says, for example if there is no such processor.
pub fn pin_thread(processor: usize) -> io::Result<()> {
    if processor >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: the number is below the set's size; the call reads the set only.
    let result = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        libc::CPU_SET(processor, &mut set);
        libc::sched_setaffinity(0, mem::size_of_val(&set), &set)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Processor time of the calling thread, in nanosecond resolution.
pub fn thread_cpu_time() -> Duration {
    clock_time(libc::CLOCK_THREAD_CPUTIME_ID).unwrap_or_default()
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
    clock_time(clock)
}

/// Raises the soft limit of open files to the hard one, for crowds with a socket each. Returns
/// the limit then in force.
pub fn raise_open_files() -> u64 {
    // SAFETY: the calls read and write one rlimit.
    unsafe {
        let mut limit: libc::rlimit = mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur = limit.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit);
        limit.rlim_cur
    }
}

/// The process that `command` starts is killed when the thread that started it ends, however it
/// ends: nothing is left behind by a parent that could not clean up.
pub fn end_with_parent(command: &mut Command) -> &mut Command {
    let bind = || {
        // SAFETY: the call reads two numbers.
        match unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // SAFETY: between fork and exec only the one system call is made; it allocates nothing.
    unsafe { command.pre_exec(bind) }
}

fn clock_time(clock: libc::clockid_t) -> io::Result<Duration> {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes one timespec.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}
