//! A controller as a process, asked by the commands that use its API.

use crate::support::{Server, canopy, run};
use serde_json::Value;
use std::path::Path;
use std::process::Output;

fn controller(folder: &Path) -> Server {
    let folder = folder.to_str().unwrap();
    Server::start(&[
        "controller",
        "--dir",
        folder,
        "--listen",
        "127.0.0.1:0",
        "--api",
        "127.0.0.1:0",
        "--json",
    ])
}

fn ask(folder: &Path, args: &[&str]) -> Output {
    run(&[args, &["--controller-dir", folder.to_str().unwrap()]].concat())
}

/// What a command prints that is to succeed.
fn told(folder: &Path, args: &[&str]) -> String {
    let Output { status, stdout, stderr } = ask(folder, args);
    assert!(status.success(), "{args:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn json(folder: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&told(folder, &[args, &["--json"]].concat())).unwrap()
}

/// Why a command fails that is to fail.
fn refused(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn worlds_outlast_a_controller_that_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("controller");
    let first = controller(&folder);
    let made = json(&folder, &["world", "create", "eu/lobby", "--channel", "chat=0-4095"]);
    assert_eq!((&made["name"], &made["channels"][0]["groups"]), (&"eu/lobby".into(), &4096.into()));
    assert!(told(&folder, &["world", "create", "arena", "--comtrees", "2"]).contains("arena"));
    let why = refused(&ask(&folder, &["world", "create", "arena"]));
    assert!(why.contains("world arena: there is a world arena already; choose another name"));
    let before = json(&folder, &["world", "list"]);
    first.kill();

    let second = controller(&folder);
    assert_eq!(second.ready["life"], 2);
    assert_eq!(json(&folder, &["world", "list"]), before);
    let shown = told(&folder, &["world", "show", "eu/lobby", "--why", "--members"]);
    assert!(shown.contains("channel chat: groups 0 to 4095"), "{shown}");
    assert!(shown.contains("it has no members"), "{shown}");
    let set =
        json(&folder, &["world", "set", "eu/lobby", "--tick-ms", "50", "--down-bits", "9000"]);
    assert_eq!((&set["mode"], &set["budget"]["down_bits"]), (&"periodic".into(), &9000.into()));
    assert_eq!(set["budget"]["up_bits"], made["budget"]["up_bits"], "what was not given stays");
    told(&folder, &["world", "delete", "eu/lobby"]);
    let left = json(&folder, &["world", "list"]);
    assert_eq!(left["worlds"].as_array().unwrap().len(), 1, "{left}");
    assert!(told(&folder, &["relay", "list"]).contains("no relays"));
    let why = refused(&ask(&folder, &["relay", "drain", "eu-1"]));
    assert!(why.contains("there is no relay eu-1; see which there are"), "{why}");
    let why = refused(&ask(&folder, &["world", "kick", "arena", "player-17"]));
    assert!(why.contains("\"player-17\"") && why.contains("show arena --members"), "{why}");
    let why = refused(&ask(&folder, &["world", "kick", "arena", "28672.64"]));
    assert!(why.contains("nobody has the address 28672.64 in the world arena"), "{why}");
}

#[test]
fn one_controller_runs_on_a_folder_and_the_other_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let _first = controller(folder.path());
    let path = folder.path().to_str().unwrap();
    let second =
        run(&["controller", "--dir", path, "--listen", "127.0.0.1:0", "--api", "127.0.0.1:0"]);
    let why = refused(&second);
    assert!(
        why.contains("another process has the store") && why.contains("end the other"),
        "{why}"
    );
}

#[test]
fn without_the_secret_or_the_controller_a_command_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let why = refused(&run(&["world", "list"]));
    assert!(why.contains("--controller-dir") && why.contains("CANOPY_API_SECRET"), "{why}");
    let server = controller(folder.path());
    let api = server.address("api").to_string();
    let with = |secret: &str| {
        let mut command = canopy(&["world", "list", "--api", &api]);
        command.env("CANOPY_API_SECRET", secret).output().unwrap()
    };
    assert!(refused(&with("a guess of some length")).contains("credential: it is another"));
    let secret = std::fs::read_to_string(folder.path().join("api.secret")).unwrap();
    assert!(with(secret.trim()).status.success());
    server.kill();
    let why = refused(&ask(folder.path(), &["world", "list"]));
    assert!(why.contains("no controller answers at") && why.contains("canopy controller"), "{why}");
    let why = refused(&run(&["controller", "--dir", "x", "--api", "0.0.0.0:0"]));
    assert!(why.contains("not encrypted") && why.contains("--insecure"), "{why}");
}
