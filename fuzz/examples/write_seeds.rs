//! Writes the packets that the relay's corpus makes go back and forth into the corpora of the
//! parsers, for a fuzzer to begin with. To be run after a change of the format; files under other
//! names stay.

use canopy_wire::{HEADER_LEN, Kind};
use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

fn main() -> io::Result<()> {
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let inputs = fs::read_dir(corpora.join("relay"))?.map(|entry| Ok(entry?.path()));
    // In order, so that the same packets are written each time.
    for input in inputs.collect::<io::Result<BTreeSet<_>>>()? {
        for (kind, packet) in canopy_fuzz::run_relay(&fs::read(input)?).packets {
            let name = format!("kind-{kind:02x}");
            let is = |of: Kind| kind == of as u8;
            let of_bodies = [(Kind::Bundle, "bundle"), (Kind::Subscribe, "subscribe")];
            let of_bodies = of_bodies.into_iter().chain([(Kind::SubscribeAck, "subscribe_ack")]);
            for (_, target) in of_bodies.filter(|(of, _)| is(*of)) {
                fs::write(corpora.join(target).join(&name), &packet[HEADER_LEN..])?;
            }
            let target = if kind < Kind::Hello as u8 { "packet" } else { "handshake" };
            fs::write(corpora.join("packet").join(&name), &packet)?;
            fs::write(corpora.join(target).join(name), packet)?;
        }
    }
    Ok(())
}
