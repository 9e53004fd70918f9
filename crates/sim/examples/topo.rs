fn main() {
    let mut args = std::env::args().skip(1);
    let file = args.next().unwrap();
    let (from, to): (u64, u64) =
        (args.next().unwrap().parse().unwrap(), args.next().unwrap().parse().unwrap());
    let net = match canopy_plan::Network::from_file(
        std::path::Path::new(&file),
        &std::fs::read(&file).unwrap(),
    ) {
        Ok(n) => n,
        Err(e) => {
            println!("{file}: {e}");
            return;
        }
    };
    for seed in from..to {
        let start = std::time::Instant::now();
        let r =
            canopy_sim::run_topology(&net, &canopy_sim::TopologyConfig::new(&file, seed)).unwrap();
        println!(
            "{} {seed}: relays {} exp {} excused {} missing {} dup {} faults {} reshaped {} broken {} moved {} {:?}",
            file.rsplit('/').next().unwrap(),
            r.relays,
            r.deliveries_expected,
            r.deliveries_excused,
            r.missing,
            r.duplicates,
            r.faults,
            r.reshaped,
            r.broken,
            r.moved,
            start.elapsed()
        );
        for p in r.problems.iter().take(6) {
            println!("    {p}");
        }
    }
}
