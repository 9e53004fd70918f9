//! Writes the seeds of all corpora. To be run after a change of the format or of `src/seeds.rs`;
//! files under other names, which fuzzing found, stay.

use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    for seed in canopy_fuzz::seeds() {
        let folder = corpora.join(seed.target);
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(seed.name), seed.bytes)?;
    }
    Ok(())
}
