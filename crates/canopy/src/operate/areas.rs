//! `canopy world areas`: how a world is divided.

use super::client::{ApiArgs, ApiClient, segment};
use crate::output::print_line;
use anyhow::{Context, bail};
use axum::http::Method;
use canopy_api::{AreaView, AreasAsk, AreasView, PhaseView, RingView};
use canopy_areas::{Area, Areas};
use clap::{Args, Subcommand};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// How a world is divided: each area has a group of its own, and clients that say where they stand are
/// subscribed to the areas around.
#[derive(Args)]
pub(super) struct AreasCommand {
    #[command(subcommand)]
    deed: Deed,
}

#[derive(Subcommand)]
enum Deed {
    /// Divide it, or otherwise than before; whoever is in is led over without loss
    Set(SetCommand),
    /// Show the areas, and how many members are in each
    Show(ShowCommand),
}

#[derive(Args)]
struct SetCommand {
    /// The world's name
    #[arg(value_name = "WORLD")]
    world: String,
    #[command(flatten)]
    ground: GroundArgs,
    /// What a grid or hexagons cover: the least and the greatest corner
    #[arg(
        long,
        value_name = "X0,Y0,X1,Y1",
        value_parser = over,
        conflicts_with = "geojson",
        allow_hyphen_values = true
    )]
    over: Option<[f64; 4]>,
    /// What is heard up to which distance: a radius and a level, such as 50=1; 0 if no level is given.
    /// Repeat it from the innermost ring on, each with a lower level
    #[arg(long = "ring", value_name = "RADIUS=LEVEL", value_parser = ring, required = true)]
    rings: Vec<RingView>,
    /// The channel whose groups the areas have; the world's only one unless it is given
    #[arg(long, value_name = "NAME")]
    channel: Option<String>,
    /// Split an area into quarters when more than so many are in it
    #[arg(long, value_name = "N")]
    split_above: Option<u32>,
    /// Merge four quarters when fewer than so many are in them together; half of --split-above unless it
    /// is given, and at most
    #[arg(long, value_name = "N", requires = "split_above")]
    merge_below: Option<u32>,
    /// How often an area is quartered at most, 1 to 8; 4 unless it is given
    #[arg(long, value_name = "N", requires = "split_above")]
    deepest: Option<u8>,
    #[command(flatten)]
    api: ApiArgs,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
struct GroundArgs {
    /// Squares with sides of this length
    #[arg(long, value_name = "SIZE", requires = "over")]
    grid: Option<f64>,
    /// Hexagons of this width
    #[arg(long, value_name = "SIZE", requires = "over")]
    hex: Option<f64>,
    /// The polygons of this file
    #[arg(long, value_name = "FILE")]
    geojson: Option<PathBuf>,
}

#[derive(Args)]
struct ShowCommand {
    /// The world's name
    #[arg(value_name = "WORLD")]
    world: String,
    /// Write a picture of them here
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    #[command(flatten)]
    api: ApiArgs,
}

impl AreasCommand {
    pub(super) fn api(&self) -> &ApiArgs {
        match &self.deed {
            Deed::Set(command) => &command.api,
            Deed::Show(command) => &command.api,
        }
    }

    pub(super) async fn run(self) -> anyhow::Result<()> {
        match self.deed {
            Deed::Set(command) => command.run().await,
            Deed::Show(command) => command.run().await,
        }
    }
}

impl SetCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let geojson = self.ground.geojson.as_deref().map(read).transpose()?;
        let ask = AreasAsk {
            channel: self.channel,
            grid: self.ground.grid,
            hex: self.ground.hex,
            geojson,
            over: self.over,
            rings: self.rings,
            split_above: self.split_above,
            merge_below: self.merge_below,
            deepest: self.deepest,
        };
        let body = serde_json::to_string(&ask)?;
        if body.len() > canopy_api::MOST_BODY {
            bail!(
                "the polygons are {} KiB as JSON, and {} are allowed; give fewer corners and digits",
                body.len() >> 10,
                canopy_api::MOST_BODY >> 10
            );
        }
        let text = client.ask(Method::PUT, &path(&self.world), body).await?;
        print(&client, &text, self.api.json)
    }
}

impl ShowCommand {
    async fn run(self) -> anyhow::Result<()> {
        let client = self.api.client()?;
        let text = client.ask(Method::GET, &path(&self.world), String::new()).await?;
        if let Some(file) = &self.svg {
            let picture = picture(&client.read(&text)?)?;
            let wrong = || format!("cannot write {}; name another file", file.display());
            std::fs::write(file, picture).with_context(wrong)?;
        }
        print(&client, &text, self.api.json)
    }
}

fn path(world: &str) -> String {
    format!("/v1/worlds/{}/areas", segment(world))
}

fn read(file: &Path) -> anyhow::Result<serde_json::Value> {
    let shown = file.display();
    let text = std::fs::read_to_string(file)
        .with_context(|| format!("cannot read {shown}; name a file of GeoJSON"))?;
    serde_json::from_str(&text)
        .with_context(|| format!("{shown} is no JSON; name a file of GeoJSON"))
}

fn picture(view: &AreasView) -> anyhow::Result<String> {
    let told = serde_json::to_vec(&view.told)?;
    let areas = Areas::from_text(&told)?;
    let crowd = view.areas.iter().map(|of| Ok((of.area.parse::<Area>()?, of.members)));
    let crowd: BTreeMap<Area, u32> = crowd.collect::<anyhow::Result<_>>()?;
    Ok(areas.in_force().to_svg(&crowd))
}

fn print(client: &ApiClient, text: &str, json: bool) -> anyhow::Result<()> {
    if json {
        return Ok(print_line(text)?);
    }
    Ok(print_line(table(&client.read(text)?).trim_end())?)
}

/// As many areas are listed, the most crowded first.
const MOST_LISTED: usize = 40;

fn table(view: &AreasView) -> String {
    let AreasView { areas, free_groups, followers, phase, .. } = view;
    let phase = match phase {
        PhaseView::Settled => "settled",
        PhaseView::Ready | PhaseView::Turned => "changing",
    };
    let mut text = format!(
        "{} areas, {free_groups} groups free, {followers} members follow, {phase}\n",
        areas.len()
    );
    // Writing to a String cannot fail.
    _ = writeln!(text, "{:<16} {:>10} {:>8}  bounds", "area", "group", "members");
    let mut listed: Vec<&AreaView> = areas.iter().collect();
    listed.sort_by_key(|of| std::cmp::Reverse(of.members));
    for AreaView { area, group, bounds: [x0, y0, x1, y1], members } in
        listed.iter().take(MOST_LISTED)
    {
        _ = writeln!(
            text,
            "{area:<16} {group:>10} {members:>8}  {x0:.1},{y0:.1} to {x1:.1},{y1:.1}"
        );
    }
    if let Some(more) = areas.len().checked_sub(MOST_LISTED).filter(|more| *more > 0) {
        _ = writeln!(text, "and {more} more; --json has all");
    }
    text
}

fn over(text: &str) -> Result<[f64; 4], String> {
    let numbers: Result<Vec<f64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
    let numbers = numbers.ok().and_then(|numbers| numbers.try_into().ok());
    numbers.ok_or_else(|| "write X0,Y0,X1,Y1, such as 0,0,1000,1000".to_owned())
}

fn ring(text: &str) -> Result<RingView, String> {
    let (radius, level) = text.split_once('=').unwrap_or((text, "0"));
    let ring = radius.parse().ok().zip(level.parse().ok());
    ring.map(|(radius, level)| RingView { radius, level })
        .ok_or_else(|| "write RADIUS=LEVEL, such as 50=1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_and_corners_are_read_or_say_what_to_write() {
        assert_eq!(ring("50=1"), Ok(RingView { radius: 50.0, level: 1 }));
        assert_eq!(ring("2.5"), Ok(RingView { radius: 2.5, level: 0 }));
        for wrong in ["", "x=1", "5=", "5=300"] {
            assert!(ring(wrong).unwrap_err().contains("50=1"), "{wrong}");
        }
        assert_eq!(over("-1,0, 5,9"), Ok([-1.0, 0.0, 5.0, 9.0]));
        for wrong in ["", "1,2,3", "1,2,3,4,5", "1,2,3,x"] {
            assert!(over(wrong).unwrap_err().contains("0,0,1000,1000"), "{wrong}");
        }
    }
}
