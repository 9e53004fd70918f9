//! The binaries of tests as cargo builds them. Steps start them without cargo, which would wait for
//! whatever is built beside them.

use std::path::PathBuf;

use serde_json::Value;

/// The tests of a crate itself, or of one file or folder in its `tests/`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TestBinary {
    /// The folder of its package, in which it runs.
    pub(crate) folder: PathBuf,
    /// Whether it holds tests from `tests/`, not those of the crate itself.
    pub(crate) is_integration: bool,
    /// What cargo calls it.
    pub(crate) name: String,
    /// The executable.
    pub(crate) path: PathBuf,
}

/// Reads a line of `cargo test --no-run --message-format json`, if it tells of a test binary.
pub(crate) fn read(line: &str) -> Option<TestBinary> {
    let message: Value = serde_json::from_str(line).ok()?;
    let target = &message["target"];
    let is_of_tests =
        message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let path = message["executable"].as_str().filter(|_| is_of_tests)?;
    let kinds = target["kind"].as_array()?;
    let manifest = PathBuf::from(message["manifest_path"].as_str()?);
    Some(TestBinary {
        folder: manifest.parent()?.to_owned(),
        is_integration: kinds.iter().any(|kind| kind == "test"),
        name: target["name"].as_str()?.to_owned(),
        path: path.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn artifact(kind: &str, test: bool, executable: Option<&str>) -> String {
        let target = json!({"kind": [kind], "name": "seeds"});
        let profile = json!({"test": test});
        json!({
            "reason": "compiler-artifact", "manifest_path": "/c/sim/Cargo.toml", "target": target,
            "profile": profile, "executable": executable,
        })
        .to_string()
    }

    #[test]
    fn only_test_binaries_are_read() {
        let built = read(&artifact("test", true, Some("/t/seeds-1"))).unwrap();
        assert_eq!((built.is_integration, built.name.as_str()), (true, "seeds"));
        assert_eq!((built.folder, built.path), ("/c/sim".into(), "/t/seeds-1".into()));
        assert!(!read(&artifact("lib", true, Some("/t/sim-1"))).unwrap().is_integration);
        assert_eq!(read(&artifact("lib", false, None)), None);
        assert_eq!(read(&artifact("bin", false, Some("/t/canopy"))), None);
        assert_eq!(read(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(read("   Compiling canopy"), None);
    }
}
