//! `cargo xtask bpf`: the kernel's programs, from their C source to the object that is committed.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::job::Job;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// The source, in the repository. Named from its root, because names stay in the object.
const SOURCE: &str = "crates/link/bpf/groupcast.bpf.c";
/// What the binary embeds. Committed, so that building it needs no clang.
const OBJECT: &str = "crates/link/bpf/groupcast.bpf.o";
/// The compiler that built what is committed: another's object has other bytes.
const COMPILER: &str = "crates/link/bpf/groupcast.bpf.clang";
const LIMIT: Duration = Duration::from_secs(60);

/// Builds the programs; or with `check` only looks whether what is committed is what its source
/// gives.
pub(crate) fn run(check: bool) -> Result<Tally> {
    let workspace = Workspace::load()?;
    let mut job = Job::start(&workspace, "bpf", LIMIT, false)?;
    if check {
        check_committed(&mut job)?
    } else {
        rebuild(&mut job)?
    }
    Ok(Tally::one_passed())
}

/// Whether the committed object is what its source gives.
pub(crate) fn check_committed(job: &mut Job<'_>) -> Result<()> {
    let built = job.workspace.target.join("xtask/groupcast.bpf.o");
    build(job, &built)?;
    let compiler = compiler(job)?;
    let committed_by = read(&job.workspace.root.join(COMPILER))?;
    let committed_by = String::from_utf8_lossy(&committed_by);
    if compiler != committed_by.trim() {
        job.note(&format!(
            "it builds; not compared with {OBJECT}, which is of {}, and here is {compiler}",
            committed_by.trim()
        ));
        return Ok(());
    }
    ensure!(
        read(&built)? == read(&job.workspace.root.join(OBJECT))?,
        "{OBJECT} is not what {SOURCE} gives; run `cargo xtask bpf` and commit both"
    );
    job.note(&format!("{OBJECT} is what its source gives, byte for byte ({compiler})"));
    Ok(())
}

fn rebuild(job: &mut Job<'_>) -> Result<()> {
    let root = &job.workspace.root;
    build(job, &root.join(OBJECT))?;
    let compiler = compiler(job)?;
    fs::write(root.join(COMPILER), format!("{compiler}\n"))
        .with_context(|| format!("cannot write {COMPILER}"))?;
    job.note(&format!("{OBJECT} is built by {compiler}; commit it with its source"));
    Ok(())
}

fn build(job: &mut Job<'_>, object: &Path) -> Result<()> {
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    // Or the object would tell, and depend on, where this checkout is.
    clang.arg("-fdebug-compilation-dir=.");
    // Debian keeps <asm/types.h> where only the host's own target looks.
    clang.arg(format!("-I/usr/include/{ARCH}-linux-gnu"));
    clang.args(["-c", SOURCE, "-o"]).arg(object);
    job.run(clang).context("it needs Debian's clang and libbpf-dev")?;
    let mut strip = Command::new("llvm-strip");
    // Leaves BTF, which the kernel reads, and takes DWARF.
    strip.arg("-g").arg(object);
    job.run(strip).context("it needs Debian's llvm")
}

/// What clang calls itself.
fn compiler(job: &mut Job<'_>) -> Result<String> {
    let mut clang = Command::new("clang");
    clang.arg("--version");
    let said = job.read(clang)?;
    Ok(said.lines().next().unwrap_or_default().trim().to_owned())
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}
