//! A game loop that walks through a world whose controller divides it into areas, and prints who is near. Start a few.
//!
//! ```text
//! canopy world create lobby --channel ground=0-999
//! canopy world areas set lobby --grid 100 --over 0,0,1000,1000 --ring 150 --split-above 20
//! cargo run -p canopy-client --example explorer -- 127.0.0.1:4041 CONTROLLER-KEY lobby
//! ```
//!
//! It says where it is, once each frame, and publishes to the group that it is answered. The subscriptions to what is
//! around follow by themselves, also while areas are split and merged.

use canopy_client::{Event, Incoming, Level, PollClient};
use std::error::Error;
use std::f64::consts::TAU;
use std::process::ExitCode;
use std::time::{Duration, Instant};

const FRAME: Duration = Duration::from_millis(50);
/// A round takes so long.
const ROUND: Duration = Duration::from_secs(120);

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [controller, key, world] = &args[..] else {
        eprintln!("usage: explorer CONTROLLER-HOST:PORT CONTROLLER-KEY WORLD");
        return ExitCode::from(2);
    };
    match explore(controller, key, world) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn explore(controller: &str, key: &str, world: &str) -> Result<(), Box<dyn Error>> {
    let mut world = PollClient::join(controller, key.parse()?, world).connect_blocking()?;
    let began = Instant::now();
    while world.poll() {
        while let Some(incoming) = world.try_next() {
            match incoming {
                Incoming::Update(update) => println!("{} is at {:?}", update.from, update.payload),
                Incoming::Event(Event::AreasChanged { version, .. }) => {
                    println!("the areas are others: number {version}");
                }
                _ => {}
            }
        }
        let angle = TAU * (began.elapsed().as_secs_f64() / ROUND.as_secs_f64());
        let position = [500.0 + 400.0 * angle.cos(), 500.0 + 400.0 * angle.sin()];
        // Nothing before the areas are known, or while the world has none.
        if let Some(here) = world.stand_at(position) {
            // While the relay is away there is no one to tell; the next frame tries again.
            let _ = world.publish(here, Level(0), &position.map(|at| (at / 4.0) as u8));
        }
        // Here the game draws its frame.
        std::thread::sleep(FRAME);
    }
    Ok(())
}
