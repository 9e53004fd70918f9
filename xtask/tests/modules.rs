//! A test file that no `main.rs` names would never run, and nobody would notice.

use std::fs;
use std::path::Path;

#[test]
fn every_file_of_a_test_binary_is_one_of_its_modules() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut named = 0;
    for package in fs::read_dir(root.join("crates")).unwrap() {
        let Ok(folders) = fs::read_dir(package.unwrap().path().join("tests")) else { continue };
        for folder in folders {
            let folder = folder.unwrap().path();
            let Ok(main) = fs::read_to_string(folder.join("main.rs")) else { continue };
            for file in fs::read_dir(&folder).unwrap() {
                let path = file.unwrap().path();
                let name = path.file_stem().unwrap().to_str().unwrap();
                let is_named = main.lines().any(|line| line == format!("mod {name};"));
                assert!(
                    name == "main" || is_named,
                    "{} is no module of its main.rs",
                    path.display()
                );
                named += usize::from(is_named);
            }
        }
    }
    assert!(named > 0, "no test binary has modules");
}
