//! `canopy token` as a script uses it, and a token that another language's library issued.

use crate::support::{Server, canopy, run};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

const CLIENT_KEY: &str = "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk";
/// The library of Python that issues a token, pinned.
const PYSETO: &str = "pyseto==1.10.0";
/// How long to wait for what must come: only a failure takes so long.
const PATIENCE: Duration = Duration::from_secs(60);

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// A new key in a folder: its file and its public key.
fn new_key(folder: &Path, name: &str) -> (String, String) {
    let file = folder.join(name).to_str().unwrap().to_owned();
    let public = text(&run(&["token", "key", "--out", &file]));
    (file, public)
}

/// What `canopy token inspect --json` says of a token on its standard input.
fn inspect(token: &str, flags: &[&str]) -> Value {
    let args = [&["token", "inspect", "-", "--json"], flags].concat();
    let mut child =
        canopy(&args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().unwrap().write_all(token.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(output.status.success(), told["valid"] == true, "{told}");
    told
}

fn issue(key: &str, groups: &str) -> String {
    let who = ["--world", "lobby", "--subject", "player-17", "--client-key", CLIENT_KEY];
    let what = ["--publish", groups, "--to", "1.64"];
    text(&run(&[&["token", "issue", "--key", key][..], &who, &what].concat()))
}

#[test]
fn a_token_is_issued_and_inspected() {
    let folder = tempfile::tempdir().unwrap();
    let (file, public) = new_key(folder.path(), "a.key");
    let token = issue(&file, "0-4095,9000");
    let told = inspect(&token, &["--trust", &public]);
    assert_eq!((&told["valid"], &told["why"]), (&true.into(), &Value::Null));
    assert_eq!(told["claims"]["comtrees"][0]["pub"]["groups"][1], "9000");
    let told = inspect(&token, &[]);
    assert!(told["why"].to_string().contains("not trusted"), "{told}");

    let secret = fs::metadata(&file).unwrap();
    use std::os::unix::fs::PermissionsExt;
    assert_eq!(secret.permissions().mode() & 0o077, 0, "nobody else may read it");
    let again = run(&["token", "key", "--out", &file]);
    assert!(!again.status.success(), "a key is not written over");
}

#[test]
fn a_delegated_key_stays_below_its_ceiling() {
    let folder = tempfile::tempdir().unwrap();
    let (root, trusted) = new_key(folder.path(), "root.key");
    let (game, public) = new_key(folder.path(), "game.key");
    let ceiling = ["--world", "lobby", "--publish", "0-4095", "--to", "1.64"];
    let delegate = ["token", "delegate", "--key", &root, "--to-key", &public];
    let delegation = text(&run(&[&delegate[..], &ceiling].concat()));
    let flags = ["--trust", &trusted, "--delegation", &delegation];
    assert_eq!(inspect(&issue(&game, "7"), &flags)["valid"], true);
    let beyond = inspect(&issue(&game, "4000-4096"), &flags);
    assert!(beyond["why"].to_string().contains("publishing on comtree 1"), "{beyond}");
}

/// What docs/tokens.md tells issuers in Python.
const ISSUE: &str = r#"
import json, pyseto, sys
key = pyseto.Key.from_paserk(open(sys.argv[1]).read().strip())
public = pyseto.Key.from_paserk(sys.argv[2])
footer = {"kid": public.to_paserk_id()}
claims = {"sub": "player-18", "jti": "5b0c8d2e", "exp": "2099-01-15T09:00:00Z", "cnf": sys.argv[3],
    "world": "lobby", "comtrees": [{"id": 1, "pub": {"groups": ["0-4095"], "level": 2}}]}
token = pyseto.Paseto.new().encode(key, claims, footer, b"canopy token v1", serializer=json)
print(token.decode())
"#;

/// A trust file with a key, and a client's key with a token of it, all in a folder.
struct Access {
    folder: tempfile::TempDir,
    signing: String,
    public: String,
    client: String,
    client_public: String,
}

impl Access {
    fn new() -> Access {
        let folder = tempfile::tempdir().unwrap();
        let (signing, public) = new_key(folder.path(), "a.key");
        fs::write(folder.path().join("trust.toml"), format!("keys = [\"{public}\"]")).unwrap();
        let client = folder.path().join("client.key").to_str().unwrap().to_owned();
        let client_public = text(&run(&["token", "client-key", "--out", &client]));
        Access { folder, signing, public, client, client_public }
    }

    fn trust(&self) -> String {
        self.folder.path().join("trust.toml").to_str().unwrap().to_owned()
    }

    fn issue(&self, groups: &str) -> String {
        let who = ["--world", "lobby", "--subject", "someone", "--client-key", &self.client_public];
        let what = ["--publish", groups, "--subscribe", groups];
        text(&run(&[&["token", "issue", "--key", &self.signing][..], &who, &what].concat()))
    }

    /// A token that a library of Python issues; `None` where that cannot be fetched.
    fn issue_in_python(&self) -> Option<String> {
        let library = self.folder.path().join("library");
        let fetch = ["-m", "pip", "-q", "install", PYSETO, "--target"];
        let fetched = Command::new("python3").args(fetch).arg(&library).output();
        if !fetched.is_ok_and(|output| output.status.success()) {
            println!("skipped: {PYSETO} cannot be fetched; install python3-pip");
            return None;
        }
        let mut python = Command::new("python3");
        python.args(["-c", ISSUE, &self.signing, &self.public, &self.client_public]);
        Some(text(&python.env("PYTHONPATH", library).output().unwrap()))
    }

    fn relay(&self) -> Server {
        let flags = ["--trust", &self.trust(), "--world", "lobby"];
        Server::start_telling(
            &[&["relay", "--listen", "127.0.0.1:0", "--json"][..], &flags].concat(),
            Stdio::piped(),
        )
    }
}

#[test]
fn a_relay_lets_in_by_a_token_that_another_languages_library_issued() {
    let access = Access::new();
    let Some(token) = access.issue_in_python() else { return };
    let told = inspect(&token, &["--trust", &access.public]);
    assert_eq!(
        (&told["valid"], &told["claims"]["comtrees"][0]["pub"]["level"]),
        (&true.into(), &2.into())
    );
    let relay = access.relay();
    let at = relay.address("relay").to_string();
    let publish = |client: &str| {
        let flags = ["--relay", &at, "--token", &token, "--client-key", client];
        run(&[&["pub", "7", "hello"], &flags[..]].concat()).status.success()
    };
    assert!(publish(&access.client));
    let other = access.folder.path().join("other.key").to_str().unwrap().to_owned();
    text(&run(&["token", "client-key", "--out", &other]));
    assert!(!publish(&other), "it is stolen");
    relay.ask_to_end();
}

#[test]
fn a_relay_lets_in_by_tokens_and_its_log_says_who_was_not() {
    let access = Access::new();
    let mut relay = access.relay();
    let (at, token) = (relay.address("relay").to_string(), access.issue("7"));
    let publish = |group: &str, flags: &[&str]| {
        let output = run(&[&["pub", group, "hello", "--relay", &at], flags].concat());
        (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let with_token = ["--token", &token, "--client-key", &access.client];
    assert!(publish("7", &with_token).0);
    let (done, error) = publish("7", &[]);
    assert!(!done && error.contains("Ask the world's backend for a new one"), "{error}");
    let other = access.folder.path().join("other.key").to_str().unwrap().to_owned();
    text(&run(&["token", "client-key", "--out", &other]));
    assert!(!publish("7", &["--token", &token, "--client-key", &other]).0, "it is stolen");
    let said = run(&[&["sub", "8", "--relay", &at][..], &with_token].concat());
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.contains("the client's token does not grant"), "{said}");
    relay.ask_to_end();
    let logs: Vec<String> = relay.logs().lines().map(Result::unwrap).collect();
    for why in ["it brought no token", "for the owner of another key"] {
        assert!(logs.iter().any(|line| line.contains(why)), "{why}: {logs:?}");
    }
}

/// One client key in 64 begins with a hyphen.
#[test]
fn a_client_key_is_taken_as_it_is_and_a_secret_is_not_repeated() {
    let access = Access::new();
    let key = format!("-{}", "A".repeat(42));
    let issue = |key: &str| {
        let who = ["--world", "w", "--subject", "s", "--client-key", key];
        run(&[&["token", "issue", "--key", &access.signing][..], &who].concat())
    };
    assert!(issue(&key).status.success());
    let secret = fs::read_to_string(&access.client).unwrap();
    let refused = issue(secret.trim());
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(said.contains("that is a secret key") && !said.contains(secret.trim()), "{said}");
}

/// By itself: nobody asks the relay to read the file. That it does so within a second is held where the
/// looking is, in `trust.rs`, for here a busy machine would be measured.
#[test]
fn a_revocation_reaches_a_running_relay() {
    let access = Access::new();
    let relay = access.relay();
    let (at, token) = (relay.address("relay").to_string(), access.issue("7"));
    let mut listener = canopy(&["sub", "7", "--relay", &at, "--token", &token]);
    let mut listener = listener
        .args(["--client-key", &access.client])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let told = BufReader::new(listener.stderr.take().unwrap()).lines();
    let (tell, hear) = mpsc::channel();
    let reading =
        thread::spawn(move || told.map(Result::unwrap).for_each(|line| drop(tell.send(line))));
    let hear = || hear.recv_timeout(PATIENCE).expect("it hears nothing");
    assert!(hear().starts_with("subscribed to "));
    text(&run(&["token", "revoke", &token, "--trust-file", &access.trust()]));
    while !hear().contains("was revoked") {}
    assert!(!listener.wait().unwrap().success(), "it could not come back");
    reading.join().unwrap();
    let told = inspect(&token, &["--trust-file", &access.trust()]);
    assert!(told["why"].to_string().contains("revoked"), "{told}");
}
