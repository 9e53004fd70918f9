//! `cargo xtask bpf`: the kernel's programs, from their C source to the objects that are committed.

use std::env::consts::ARCH;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::job::Job;
use crate::tally::Tally;
use crate::workspace::Workspace;

/// Where sources and objects are, from the repository's root.
const FOLDER: &str = "crates/engines/bpf";
/// The programs: NAME.bpf.c gives NAME.bpf.o, which the binary embeds. The objects are committed, so
/// that building Canopy needs no clang.
const PROGRAMS: [&str; 2] = ["groupcast", "sink"];
/// The compiler that built what is committed: another's objects have other bytes.
const COMPILER: &str = "crates/engines/bpf/built-by";
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
    Ok(Tally::PASSED)
}

/// Whether the committed objects are what their sources give.
pub(crate) fn check_committed(job: &mut Job<'_>) -> Result<()> {
    let compiler = compiler(job)?;
    let committed_by = read(&job.workspace.root.join(COMPILER))?;
    let committed_by = String::from_utf8_lossy(&committed_by).trim().to_owned();
    for name in PROGRAMS {
        let (committed, source) = (file_of(name, 'o'), file_of(name, 'c'));
        let built = job.workspace.target.join("xtask").join(format!("{name}.bpf.o"));
        build(job, &source, &built)?;
        if compiler != committed_by {
            job.note(&format!(
                "{source} builds; not compared with {committed}, which is of {committed_by}, and \
                 here is {compiler}"
            ));
            continue;
        }
        ensure!(
            read(&built)? == read(&job.workspace.root.join(&committed))?,
            "{committed} is not what {source} gives; run `cargo xtask bpf` and commit both"
        );
        job.note(&format!("{committed} is what its source gives, byte for byte ({compiler})"));
    }
    Ok(())
}

fn rebuild(job: &mut Job<'_>) -> Result<()> {
    let root = &job.workspace.root;
    let compiler = compiler(job)?;
    for name in PROGRAMS {
        let object = file_of(name, 'o');
        build(job, &file_of(name, 'c'), &root.join(&object))?;
        job.note(&format!("{object} is built by {compiler}; commit it with its source"));
    }
    fs::write(root.join(COMPILER), format!("{compiler}\n"))
        .with_context(|| format!("cannot write {COMPILER}"))
}

fn file_of(name: &str, ending: char) -> String {
    format!("{FOLDER}/{name}.bpf.{ending}")
}

fn build(job: &mut Job<'_>, source: &str, object: &Path) -> Result<()> {
    let mut clang = Command::new("clang");
    clang.args(["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Wextra", "-Werror"]);
    // Or the object would tell, and depend on, where this checkout is and what its folders are called.
    clang.arg("-fdebug-compilation-dir=.").arg(format!("-fdebug-prefix-map={FOLDER}/="));
    // Debian keeps <asm/types.h> where only the host's own target looks.
    clang.arg(format!("-I/usr/include/{ARCH}-linux-gnu"));
    clang.args(["-c", source, "-o"]).arg(object);
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
