//! A relay that is removed while nobody can tell it.

use crate::control_plane::Cluster;
use crate::support::{Server, get_until};
use serde_json::{Value, json};
use std::process::Command;

fn signal(server: &Server, name: &str) {
    let process = server.process().to_string();
    assert!(Command::new("kill").args([name, &process]).status().unwrap().success());
}

#[test]
fn a_relay_that_was_removed_out_of_reach_gives_up_what_it_had() {
    let cluster = Cluster::start_in(tempfile::tempdir().unwrap(), &[]);
    let _r1 = cluster.relay("r1");
    let r2 = cluster.relay_by("r2", &["--threads", "1", "--metrics", "127.0.0.1:0"]);
    cluster.until_relays_are(&["up", "up"]);
    cluster.ask("POST", "/v1/worlds", &json!({ "name": "w" }));
    cluster.member("c", "r2");
    let net = |wanted| get_until(r2.address("metrics"), "/net", wanted);
    net("\"comtrees\":[{");
    signal(&r2, "-STOP");
    cluster.until_relays_are(&["up", "gone"]);
    cluster.ask("DELETE", "/v1/relays/r2?force=true", &Value::Null);
    cluster.until_relays_are(&["up"]);
    signal(&r2, "-CONT");
    net("\"comtrees\":[]");
}
