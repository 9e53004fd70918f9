//! A server with authority: it alone decides where the players are.
//!
//! ```text
//! cargo run -p canopy-client --example authority -- 127.0.0.1:4040 [SECONDS]
//! ```
//!
//! The server and eight players run in one process here, each with a client of its own. Players
//! send their inputs to the server, and to it alone. Twenty times a second the server moves the
//! players and publishes, in one call, what happened: to the group of each player's cell where it
//! is, and to each player which of its inputs has been heard.
//!
//! There are two levels. Everything is published in detail at level 1, and every tenth time at level
//! 0. A player subscribes to the cells around it at level 1 and to all others at level 0: it sees
//! those who are near 20 times a second, and those who are far twice a second, over the same groups.
//!
//! On a relay that asks for no tokens, as here, anyone may answer in the lobby and pretend to be the server. Where
//! it asks for them, the backend grants each what its part needs. The server gets an address of its own. Players
//! publish in the lobby only, and send to nobody but that address:
//!
//! ```text
//! canopy token issue --key world.key --world arena --subject server --client-key KEY \
//!     --server --address 1.1 --publish 1-36 --publish-level 1 --subscribe 0 --to any
//! canopy token issue --key world.key --world arena --subject player-17 --client-key KEY \
//!     --publish 0 --subscribe 1-36 --subscribe-level 1 --to 1.1
//! ```
//!
//! Then nobody else can say where players are, because the relay drops it. A player can still send to the server
//! what it likes, and the server decides.

use canopy_client::{
    Client, Event, Group, Incoming, Level, Outgoing, Participant, PublishError, Update,
};
use std::collections::{BTreeMap, BTreeSet};
use std::error::Error;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use tokio::time::interval;

type Failure = Box<dyn Error + Send + Sync>;

const TICK: Duration = Duration::from_millis(50);
/// One in so many ticks is for those who are far, too.
const FAR_EVERY: u64 = 10;
/// What players in the cells around get.
const DETAIL: Level = Level(1);
/// What everyone gets.
const COARSE: Level = Level(0);
const PLAYERS: usize = 8;
/// The world is a square of so many cells a side, each of so many steps.
const SIDE: u32 = 6;
const CELL: u32 = 100;
const STEPS_PER_TICK: u32 = 3;
/// Where newcomers ask for the server.
const LOBBY: Group = Group::new(0);
/// Who is silent for so long has gone: the server forgets a player, and a player its server.
const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::main(flavor = "current_thread")]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let relay = arguments.next();
    let seconds = arguments.next().map_or(Ok(10), |argument| argument.parse());
    let (Some(relay), Ok(seconds)) = (relay, seconds) else {
        eprintln!("usage: authority RELAY-HOST:PORT [SECONDS]");
        return ExitCode::from(2);
    };
    match play(&relay, Duration::from_secs(seconds)).await {
        Ok(sights) => {
            let answered = sights.iter().filter(|sights| sights.answers > 0).count();
            println!("{answered} of {PLAYERS} players were heard by the server");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Plays for a while; returns what each player has seen.
pub(crate) async fn play(relay: &str, span: Duration) -> Result<Vec<Sights>, Failure> {
    let world = Client::builder(relay).connect().await?;
    world.subscribe(LOBBY, COARSE).await?;
    let server = tokio::spawn(Server::new(world.clone()).run());
    let mut players = Vec::new();
    for number in 0..PLAYERS {
        let world = Client::builder(relay).connect().await?;
        players.push(tokio::spawn(Player::new(number, world).run(span)));
    }
    let mut sights = Vec::new();
    for player in players {
        sights.push(player.await??);
    }
    world.leave().await;
    server.await??;
    Ok(sights)
}

/// Where somebody is in the world, in steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Position {
    x: u32,
    y: u32,
}

impl Position {
    fn cell(self) -> (u32, u32) {
        (self.x / CELL, self.y / CELL)
    }

    fn group(self) -> Group {
        group(self.cell())
    }

    /// One tick later. The world ends at its edges.
    fn walk(self, (x, y): (i8, i8)) -> Position {
        let go = |at: u32, towards: i8| {
            let step = i64::from(towards.signum()) * i64::from(STEPS_PER_TICK);
            (i64::from(at) + step).clamp(0, i64::from(SIDE * CELL - 1)) as u32
        };
        Position { x: go(self.x, x), y: go(self.y, y) }
    }
}

fn group((x, y): (u32, u32)) -> Group {
    Group::new(1 + y * SIDE + x)
}

/// What the server and the players say to each other. The first byte says which it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// A player in the lobby: who is the server?
    Hello,
    /// A player to the server: where it wants to go.
    Input { number: u32, towards: (i8, i8) },
    /// The server to a player: you are in, and I have heard your inputs up to this one.
    Heard { number: u32, position: Position },
    /// The server to a cell: who is where.
    Seen { player: Participant, position: Position },
}

impl Message {
    fn encode(self) -> Vec<u8> {
        let numbers = |kind: u8, numbers: &[u32]| {
            let bytes = numbers.iter().flat_map(|number| number.to_be_bytes());
            std::iter::once(kind).chain(bytes).collect()
        };
        match self {
            Message::Hello => numbers(0, &[]),
            Message::Input { number, towards: (x, y) } => {
                let mut bytes: Vec<u8> = numbers(1, &[number]);
                bytes.extend([x as u8, y as u8]);
                bytes
            }
            Message::Heard { number, position } => numbers(2, &[number, position.x, position.y]),
            Message::Seen { player, position } => {
                numbers(3, &[player.into(), position.x, position.y])
            }
        }
    }

    /// What strangers sent may be anything.
    fn decode(bytes: &[u8]) -> Option<Message> {
        let (kind, rest) = bytes.split_first()?;
        let number =
            |at: usize| Some(u32::from_be_bytes(rest.get(4 * at..4 * at + 4)?.try_into().ok()?));
        let position = || Some(Position { x: number(1)?, y: number(2)? });
        Some(match kind {
            0 => Message::Hello,
            1 => Message::Input {
                number: number(0)?,
                towards: (*rest.get(4)? as i8, *rest.get(5)? as i8),
            },
            2 => Message::Heard { number: number(0)?, position: position()? },
            3 => Message::Seen {
                player: Participant::try_from(number(0)?).ok()?,
                position: position()?,
            },
            _ => return None,
        })
    }
}

/// What the server knows of a player.
struct Avatar {
    position: Position,
    towards: (i8, i8),
    /// The last input heard.
    number: u32,
    heard: Instant,
}

struct Server {
    world: Client,
    /// By address: the relay gives nobody one that was another's a moment ago. For the longer run,
    /// whoever is silent is forgotten.
    avatars: BTreeMap<Participant, Avatar>,
    joined: u32,
    tick: u64,
}

impl Server {
    fn new(world: Client) -> Server {
        Server { world, avatars: BTreeMap::new(), joined: 0, tick: 0 }
    }

    async fn run(mut self) -> Result<(), Failure> {
        let mut tick = interval(TICK);
        loop {
            tokio::select! {
                _ = tick.tick() => match self.tick() {
                    // Without a relay nobody plays; the client goes on trying.
                    Ok(()) | Err(PublishError::NotConnected | PublishError::Busy) => {}
                    Err(PublishError::Left) => return Ok(()),
                    Err(error) => return Err(error.into()),
                },
                incoming = self.world.next() => match incoming {
                    // A relay that does not know us knows none of the players either.
                    Some(Incoming::Event(Event::Connected { kept_address: false, .. })) => {
                        self.avatars.clear();
                    }
                    Some(Incoming::Event(Event::Gone { participant, .. })) => {
                        self.avatars.remove(&participant);
                    }
                    Some(Incoming::Update(update)) => self.hear(&update),
                    Some(_) => {}
                    None => return Ok(()),
                },
            }
        }
    }

    fn hear(&mut self, update: &Update) {
        match Message::decode(&update.payload) {
            Some(Message::Hello) if update.group == Some(LOBBY) => self.welcome(update.from),
            Some(Message::Input { number, towards }) if update.group.is_none() => {
                let Some(avatar) = self.avatars.get_mut(&update.from) else { return };
                avatar.heard = Instant::now();
                // Late ones are of the past.
                if number > avatar.number {
                    (avatar.number, avatar.towards) = (number, towards);
                }
            }
            _ => {}
        }
    }

    /// Players start in two crowds, so that each has some near and some far.
    fn welcome(&mut self, player: Participant) {
        let side = if self.joined.is_multiple_of(2) { 1 } else { SIDE - 2 };
        let middle = side * CELL + CELL / 2;
        let position = Position { x: middle + self.joined * 2, y: middle };
        self.avatars.entry(player).or_insert_with(|| {
            self.joined = (self.joined + 1) % 20;
            Avatar { position, towards: (0, 0), number: 0, heard: Instant::now() }
        });
    }

    /// Moves everyone, and publishes it all in one call.
    fn tick(&mut self) -> Result<(), PublishError> {
        self.tick += 1;
        self.avatars.retain(|_, avatar| avatar.heard.elapsed() < PATIENCE);
        let level = if self.tick.is_multiple_of(FAR_EVERY) { COARSE } else { DETAIL };
        let mut messages = Vec::new();
        for (player, avatar) in &mut self.avatars {
            avatar.position = avatar.position.walk(avatar.towards);
            let Avatar { position, number, .. } = *avatar;
            let seen = Message::Seen { player: *player, position }.encode();
            let heard = Message::Heard { number, position }.encode();
            messages.push((*player, position.group(), seen, heard));
        }
        let epoch = self.world.epoch();
        self.world.publish_many(messages.iter().flat_map(|(player, group, seen, heard)| {
            let private = Outgoing::to(*player, heard).only_in(epoch);
            [Outgoing::new(*group, level, seen), private]
        }))
    }
}

struct Player {
    name: usize,
    world: Client,
    /// The server's last word, to which inputs are the answer.
    server: Option<(Update, Instant)>,
    position: Position,
    interest: BTreeMap<(u32, u32), Level>,
    inputs: u32,
    sights: Sights,
}

/// What a player has seen.
#[derive(Default)]
pub(crate) struct Sights {
    /// How often the server has said that it has heard inputs.
    pub(crate) answers: u32,
    /// Those in the cells around.
    pub(crate) near: Sight,
    /// Those elsewhere.
    pub(crate) far: Sight,
}

#[derive(Default)]
pub(crate) struct Sight {
    others: BTreeSet<Participant>,
    pub(crate) updates: u32,
}

impl Player {
    fn new(name: usize, world: Client) -> Player {
        Player {
            name,
            world,
            server: None,
            position: Position::default(),
            interest: BTreeMap::new(),
            inputs: 0,
            sights: Sights::default(),
        }
    }

    /// Plays for a while, printing every second what is to be seen, and leaves.
    async fn run(mut self, span: Duration) -> Result<Sights, Failure> {
        let started = Instant::now();
        let (mut tick, mut look) = (interval(TICK), interval(Duration::from_secs(1)));
        while started.elapsed() < span {
            tokio::select! {
                _ = tick.tick() => self.act()?,
                _ = look.tick() => println!("{}", self.report()),
                incoming = self.world.next() => match incoming {
                    Some(Incoming::Event(Event::Connected { .. } | Event::Gone { .. })) => {
                        self.server = None;
                    }
                    Some(Incoming::Update(update)) => self.hear(update),
                    Some(_) => {}
                    None => break,
                },
            }
        }
        self.world.leave().await;
        println!("{}", self.report());
        Ok(self.sights)
    }

    /// Tells the server where to go, or looks for a server.
    fn act(&mut self) -> Result<(), Failure> {
        self.server.take_if(|(_, heard)| heard.elapsed() > PATIENCE);
        let sent = match &self.server {
            None => self.world.publish(LOBBY, COARSE, &Message::Hello.encode()),
            Some((word, _)) => {
                self.inputs += 1;
                let towards = (wander(self.inputs, self.name), wander(self.inputs, self.name + 3));
                let input = Message::Input { number: self.inputs, towards };
                self.world.reply_to(word, &input.encode())
            }
        };
        match sent {
            Ok(()) | Err(PublishError::NotConnected | PublishError::Busy) => Ok(()),
            Err(PublishError::Stale) => {
                self.server = None;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn hear(&mut self, update: Update) {
        match Message::decode(&update.payload) {
            Some(Message::Heard { number, position }) if update.group.is_none() => {
                self.sights.answers += u32::from(number > 0);
                self.position = position;
                self.server = Some((update, Instant::now()));
                self.look_around();
            }
            Some(Message::Seen { player, position })
                if Some(player) != self.world.participant() =>
            {
                let is_near = self.interest.get(&position.cell()) == Some(&DETAIL);
                let sight = if is_near { &mut self.sights.near } else { &mut self.sights.far };
                sight.others.insert(player);
                sight.updates += 1;
            }
            _ => {}
        }
    }

    /// Wants detail of the cells around, and of all others what everyone gets. A cell that comes
    /// near or goes far changes its level, and nothing else.
    fn look_around(&mut self) {
        let (x, y) = self.position.cell();
        let is_near = |cell: (u32, u32)| cell.0.abs_diff(x) <= 1 && cell.1.abs_diff(y) <= 1;
        let cells = (0..SIDE).flat_map(|y| (0..SIDE).map(move |x| (x, y)));
        let wanted = cells.map(|cell| (cell, if is_near(cell) { DETAIL } else { COARSE }));
        let changed: Vec<_> =
            wanted.filter(|(cell, level)| self.interest.get(cell) != Some(level)).collect();
        if !changed.is_empty() {
            self.world.subscribe_many(changed.iter().map(|(cell, level)| (group(*cell), *level)));
            self.interest.extend(changed);
        }
    }

    fn report(&self) -> String {
        let (Position { x, y }, Sights { answers, near, far }) = (self.position, &self.sights);
        format!(
            "player {} at {x},{y}: {} inputs, {answers} answers; sees {} near ({} updates) and {} \
             far ({} updates)",
            self.name,
            self.inputs,
            near.others.len(),
            near.updates,
            far.others.len(),
            far.updates,
        )
    }
}

/// Back and forth, each player in a rhythm of its own.
fn wander(step: u32, name: usize) -> i8 {
    let beat = 15 + name as u32;
    if (step / beat).is_multiple_of(2) { 1 } else { -1 }
}
