//! Worlds whose core is a mesh, as the API takes and tells them.

use super::*;

#[tokio::test]
async fn a_world_has_a_meshed_core_until_it_is_given_another() {
    let daemon = Daemon::start(0).await;
    let (path, mesh) = ("/v1/worlds/lobby", json!({ "name": "lobby", "core": "mesh" }));
    let (status, made) = daemon.send("POST", "/v1/worlds", &mesh.to_string()).await;
    assert_eq!((status, &made["core"]), (StatusCode::CREATED, &json!("mesh")), "{made}");
    assert_eq!(daemon.get(path).await, made);
    for rule in ["center-and-neighbours", "mesh", "all", "center"] {
        let change = json!({ "core": rule }).to_string();
        let (status, changed) = daemon.send("PATCH", path, &change).await;
        assert_eq!((status, &changed["core"]), (StatusCode::OK, &json!(rule)), "{changed}");
        assert_eq!(daemon.get(path).await, changed);
    }
}

#[tokio::test]
async fn a_core_that_is_not_known_is_refused_with_those_that_are() {
    let daemon = Daemon::start(0).await;
    let mesh = r#"{"name": "lobby", "core": "mesh"}"#;
    assert_eq!(daemon.send("POST", "/v1/worlds", mesh).await.0, StatusCode::CREATED);
    let before = daemon.get("/v1/worlds").await;
    for (method, path, body) in [
        ("POST", "/v1/worlds", r#"{"name": "arena", "core": "ring"}"#),
        ("PATCH", "/v1/worlds/lobby", r#"{"levels": 1, "core": "ring"}"#),
    ] {
        let (status, refused) = daemon.send(method, path, body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{method}: {refused}");
        let [what, place, remedy] =
            ["what", "where", "remedy"].map(|part| refused["error"][part].as_str().unwrap());
        for word in ["`ring`", "`center`", "`center-and-neighbours`", "`all`", "`mesh`"] {
            assert!(what.contains(word), "{method}: {word} is not in {what:?}");
        }
        assert!(place.starts_with("body, line 1, column "), "{method}: {place}");
        assert!(remedy.contains("/v1/openapi.json"), "{method}: {remedy}");
        assert_eq!(daemon.get("/v1/worlds").await, before, "{method} changes nothing");
    }
    let described = &daemon.get("/v1/openapi.json").await["components"]["schemas"]["CoreRule"];
    assert!(described.to_string().contains(r#""mesh""#), "{described}");
}

/// Three relays that are all joined: of three links the tree has two, and the mesh the third.
#[tokio::test]
async fn the_links_of_a_mesh_are_told_with_the_tree() {
    let daemon = Daemon::start(3).await;
    for ends in [["a", "b"], ["a", "c"], ["b", "c"]] {
        let link =
            json!({ "ends": ends, "bits": 1_000_000_000, "packets": 1_000_000, "delay_us": 9 });
        let (status, made) = daemon.send("POST", "/v1/links", &link.to_string()).await;
        assert_eq!(status, StatusCode::CREATED, "{made}");
    }
    let are_usable =
        |all: &Value| all["links"].as_array().unwrap().iter().all(|link| link["usable"] == true);
    let links = daemon.until("/v1/links", are_usable).await;
    daemon.world("lobby", 1).await;
    for (number, relay) in [(1, "a"), (2, "b"), (3, "c")] {
        let mut new: Value = serde_json::from_str(&new_member(number)).unwrap();
        new["measured"] = json!([{ "relay": relay, "delay_us": 1 }]);
        let (status, joined) =
            daemon.send("POST", "/v1/worlds/lobby/members", &new.to_string()).await;
        assert_eq!((status, &joined["relay"]["name"]), (StatusCode::OK, &json!(relay)), "{joined}");
    }
    let mesh = |overlay: &Value| -> Vec<(Value, Value, Value)> {
        let hops = overlay["world"]["comtrees"][0]["tree"].as_array().unwrap();
        let of = |hop: &Value| {
            let peers = hop["peers"].as_array().cloned().unwrap_or_default();
            let name = hop["relay"].clone();
            peers
                .into_iter()
                .map(move |peer| (name.clone(), peer["relay"].clone(), peer["link"].clone()))
        };
        hops.iter().flat_map(of).collect()
    };
    assert_eq!(mesh(&daemon.get("/v1/overlay").await), [], "a tree has none");

    let (status, _) = daemon.send("PATCH", "/v1/worlds/lobby", r#"{"core": "mesh"}"#).await;
    assert_eq!(status, StatusCode::OK);
    let overlay = daemon.until("/v1/overlay", |overlay| !mesh(overlay).is_empty()).await;
    let hops = overlay["world"]["comtrees"][0]["tree"].as_array().unwrap();
    assert!(hops.iter().all(|hop| hop["core"] == true), "{overlay}");
    let above: Vec<&Value> = hops.iter().map(|hop| &hop["link"]).collect();
    let [(one, other, link)] = &mesh(&overlay)[..] else { panic!("not one link: {overlay}") };
    assert!(!above.contains(&link), "it is none of the tree: {overlay}");
    let told = links["links"].as_array().unwrap().iter().find(|told| told["id"] == *link).unwrap();
    let ends = told["ends"].as_array().unwrap();
    assert!(ends.contains(one) && ends.contains(other) && one != other, "{told}");
    assert_eq!(overlay["world"]["comtrees"], daemon.get("/v1/worlds/lobby").await["comtrees"]);

    let (status, _) = daemon.send("PATCH", "/v1/worlds/lobby", r#"{"core": "center"}"#).await;
    assert_eq!(status, StatusCode::OK);
    daemon.until("/v1/overlay", |overlay| mesh(overlay).is_empty()).await;
}
