//! Child processes: no standard input, output handed on line by line as it comes, an end at the limit.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

const TICK: Duration = Duration::from_millis(20);
/// How long the pipes may stay open after the child itself has ended.
const GRACE: Duration = Duration::from_secs(2);

/// Which of the child's two outputs a line came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pipe {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Runs `command` to its end, or until `is_over`, when it and all it started are killed.
pub(crate) fn stream(
    mut command: Command,
    is_over: impl Fn() -> bool,
    mut on_line: impl FnMut(Pipe, &str),
) -> Result<ExitStatus> {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let name = spelled(&command);
    let mut child = command.spawn().with_context(|| format!("cannot start `{name}`"))?;
    let lines = read_pipes(&mut child);
    let mut pipes_open = true;
    let mut ended: Option<(ExitStatus, Instant)> = None;
    loop {
        match lines.recv_timeout(TICK) {
            Ok((pipe, line)) => on_line(pipe, &line),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => {
                pipes_open = false;
                thread::sleep(TICK);
            }
        }
        if ended.is_none() {
            ended = child.try_wait()?.map(|status| (status, Instant::now()));
        }
        match ended {
            Some((status, _)) if !pipes_open => return Ok(status),
            Some((status, at)) if at.elapsed() > GRACE => {
                eprintln!("warning: `{name}` left a process behind that holds its output open");
                return Ok(status);
            }
            None if is_over() => {
                kill_tree(child.id());
                child.wait()?;
                while let Ok((pipe, line)) = lines.recv_timeout(TICK) {
                    on_line(pipe, &line);
                }
                bail!("`{name}` went over the time limit of its step and was ended");
            }
            _ => {}
        }
    }
}

/// The command as one would type it, its program without the folder.
pub(crate) fn spelled(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let name = program.file_name().unwrap_or(program.as_os_str());
    let mut words = vec![name.to_string_lossy().into_owned()];
    words.extend(command.get_args().map(|arg| arg.to_string_lossy().into_owned()));
    words.join(" ")
}

fn read_pipes(child: &mut Child) -> Receiver<(Pipe, String)> {
    let (sender, lines) = channel();
    let out = child.stdout.take().expect("stdout is piped");
    let err = child.stderr.take().expect("stderr is piped");
    let second = sender.clone();
    thread::spawn(move || read_lines(out, Pipe::Out, &sender));
    thread::spawn(move || read_lines(err, Pipe::Err, &second));
    lines
}

fn read_lines(from: impl Read, pipe: Pipe, sender: &Sender<(Pipe, String)>) {
    let mut from = BufReader::new(from);
    let mut bytes = Vec::new();
    while from.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let line = String::from_utf8_lossy(&bytes).trim_end_matches(['\n', '\r']).to_owned();
        if sender.send((pipe, line)).is_err() {
            return;
        }
        bytes.clear();
    }
}

/// Kills a process and all its descendants: those of a killed `cargo test` would run on.
fn kill_tree(root: u32) {
    let parents: Vec<(u32, u32)> = processes();
    let mut doomed = vec![root];
    let mut next = 0;
    while next < doomed.len() {
        let parent = doomed[next];
        doomed.extend(parents.iter().filter(|(_, of)| *of == parent).map(|(pid, _)| *pid));
        next += 1;
    }
    // The shell's own `kill`: the program of that name is missing on minimal systems.
    let _ = Command::new("sh")
        .args(["-c", "kill -KILL \"$@\" 2>/dev/null", "sh"])
        .args(doomed.iter().map(u32::to_string))
        .status();
}

/// Every process and its parent.
fn processes() -> Vec<(u32, u32)> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries
        .flatten()
        .filter_map(|entry| {
            let pid = entry.file_name().to_str()?.parse().ok()?;
            let stat = fs::read_to_string(entry.path().join("stat")).ok()?;
            Some((pid, parent_in_stat(&stat)?))
        })
        .collect()
}

/// Reads the parent from `PID (NAME) STATE PARENT …`; the name may hold spaces and brackets.
fn parent_in_stat(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    fn shell(script: &str) -> (Result<ExitStatus>, Vec<(Pipe, String)>) {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let result = stream(command, || false, |pipe, line| lines.push((pipe, line.to_owned())));
        (result, lines)
    }

    #[test]
    fn both_outputs_come_line_by_line_with_the_exit_code() {
        let (result, lines) = shell("echo one; printf 'half'; echo two >&2; exit 3");
        assert_eq!(result.unwrap().code(), Some(3));
        let out: Vec<_> = lines.iter().filter(|(pipe, _)| *pipe == Pipe::Out).collect();
        assert_eq!(out, [&(Pipe::Out, "one".to_owned()), &(Pipe::Out, "half".to_owned())]);
        assert!(lines.contains(&(Pipe::Err, "two".to_owned())));
    }

    #[test]
    fn there_is_no_standard_input() {
        let (_, lines) = shell("wc -c");
        assert_eq!(lines[0].1.trim(), "0");
    }

    #[test]
    fn a_child_over_its_limit_is_killed_with_its_children() {
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 600 & echo $!; wait"]);
        // Its limit is over as soon as it has told the number of its own child.
        let grandchild = Cell::new(None);
        let is_over = || grandchild.get().is_some();
        let result = stream(command, is_over, |_, line| grandchild.set(line.parse::<u32>().ok()));
        assert!(result.unwrap_err().to_string().contains("time limit"));
        let grandchild = grandchild.get().unwrap();
        let gone = || {
            let stat = fs::read_to_string(format!("/proc/{grandchild}/stat")).unwrap_or_default();
            stat.is_empty() || stat.contains(") Z ")
        };
        let until = Instant::now() + Duration::from_secs(30);
        while !gone() {
            assert!(Instant::now() < until, "the grandchild is still there");
            thread::yield_now();
        }
    }

    #[test]
    fn a_process_name_with_brackets_does_not_hide_the_parent() {
        assert_eq!(parent_in_stat("42 (a) b (c)) S 7 42 42"), Some(7));
        assert_eq!(parent_in_stat(""), None);
    }
}
