//! Two participants of one world say hello to each other.
//!
//! ```text
//! cargo run -p canopy-client --example hello -- 127.0.0.1:4040
//! ```

use canopy_client::{Client, Group, Level};
use std::error::Error;
use std::process::ExitCode;

const SQUARE: Group = Group::new(7);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let Some(relay) = std::env::args().nth(1) else {
        eprintln!("usage: hello RELAY-HOST:PORT");
        return ExitCode::from(2);
    };
    match hello(&relay).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn hello(relay: &str) -> Result<(), Box<dyn Error>> {
    let alice = Client::builder(relay).connect().await?;
    let bob = Client::builder(relay).connect().await?;

    // Updates come from the moment on at which the relay has acknowledged.
    alice.subscribe(SQUARE, Level(0)).await?;
    bob.subscribe(SQUARE, Level(0)).await?;

    alice.publish(SQUARE, Level(0), b"hello, square")?;
    let Some(heard) = bob.recv().await else { return Ok(()) };
    println!("bob hears {}: {}", heard.from, String::from_utf8_lossy(&heard.payload));

    // An update knows its publisher, so it can be answered in private.
    bob.reply_to(&heard, b"hello, alice")?;
    let Some(heard) = alice.recv().await else { return Ok(()) };
    println!("alice hears {}: {}", heard.from, String::from_utf8_lossy(&heard.payload));

    alice.leave().await;
    bob.leave().await;
    Ok(())
}
