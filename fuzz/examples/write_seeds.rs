//! Writes the packets that the relay's corpus makes go back and forth into the corpora of the
//! parsers, and messages of the control plane into theirs, for a fuzzer to begin with. To be run after a change of the format; files under other
//! names stay.

use canopy_fuzz::input_of;
use canopy_wire::Kind;
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
            let of_kinds = [
                (Kind::Updates, "updates"),
                (Kind::Subscribe, "subscribe"),
                (Kind::SubscribeAck, "subscribe_ack"),
            ];
            let of_kinds = of_kinds.into_iter().filter(|(of, _)| is(*of)).map(|(_, target)| target);
            let of_all =
                if kind < Kind::Hello as u8 { &["packet"][..] } else { &["packet", "handshake"] };
            for target in of_kinds.chain(of_all.iter().copied()) {
                fs::write(corpora.join(target).join(&name), input_of(target, &packet))?;
            }
        }
    }
    for (target, seeds) in [
        ("control", canopy_fuzz::control_seeds()),
        ("api", canopy_fuzz::api_seeds()),
        ("hello", canopy_fuzz::hello_seeds()),
        ("answers", canopy_fuzz::answers_seeds()),
        ("channel", canopy_fuzz::channel_seeds()),
    ] {
        fs::create_dir_all(corpora.join(target))?;
        for (name, input) in seeds {
            fs::write(corpora.join(target).join(name), input)?;
        }
    }
    Ok(())
}
