//! Who joins worlds: credentials are checked, the controller finds a place, the place's relay lets
//! them in, and a token says so.

use super::credentials::{Admits, Credentials, Right, token_id};
use super::driver::{Handle, now};
use super::waiting::{Outcome, Waiting};
use canopy_api::{Budget, Joined, Nearness, NewMember, Problem, RelaysToMeasure, Wish};
use canopy_control::{
    Admission, Controller, Enter, Entry, Member, MemberState, Name, Refusal, World,
};
use canopy_token::{Claims, SigningKey, UnixTime};
use canopy_wire::Time;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// A relay lets somebody in within this time, or the join has failed.
const PATIENCE: Duration = Duration::from_secs(5);
/// If the controller's events were missed, the join is asked for again so often.
const ATTEMPTS: u32 = 3;

/// What a participant asks for.
#[derive(Clone, Debug)]
pub(crate) struct JoinAsk {
    /// The world's name.
    pub(crate) world: String,
    /// A token for the world, by a key that the controller trusts.
    pub(crate) credential: Option<String>,
    /// The participant's public key, whose secret it has proved to have.
    pub(crate) client_key: [u8; 32],
    /// What it is to send and be sent; what its credential or the world says if nothing.
    pub(crate) budget: Option<Budget>,
    /// How near relays are.
    pub(crate) measured: Vec<Nearness>,
    /// The number that it has given to its visit, higher than those of earlier ones; 0 if none.
    pub(crate) visit: u64,
}

/// Who leaves, and what it gives back.
#[derive(Clone, Debug)]
pub(crate) struct LeaveAsk {
    /// The world's name.
    pub(crate) world: String,
    /// By what it is in.
    pub(crate) credential: Option<String>,
    /// The address of the place that it gives back; all of its places if nothing.
    pub(crate) address: Option<String>,
    /// The visit that ends; whichever there is if nothing.
    pub(crate) visit: Option<u64>,
}

/// Joins, renewals and leaves. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Joins(Arc<Inner>);

struct Inner {
    handle: Handle,
    issuer: SigningKey,
    credentials: Credentials,
    waiting: Arc<Waiting>,
}

/// Somebody who is to be let in.
struct New {
    right: Right,
    client_key: [u8; 32],
    budget: Option<Budget>,
    measured: Vec<Nearness>,
    visit: Visit,
}

/// Which visit a place is for. The place keeps the one that has begun last.
#[derive(Clone, Copy)]
enum Visit {
    /// One that begins. What a visit before it asks to give back stays.
    Begins(u64),
    /// One that has begun before. It may use the place of a later one.
    GoesOn(u64),
}

impl Visit {
    /// The visit that the place is for, which was for another before.
    ///
    /// # Errors
    /// The other has begun later: this join is late.
    fn after(self, before: u64) -> Result<u64, Problem> {
        match self {
            Visit::Begins(visit @ 1..) if visit < before => {
                let what = "a visit that has begun later has the place";
                let remedy = "go on with that one or leave it; if your clock was set back, wait until its place has ended";
                Err(Problem::new(409, what, "visit", remedy))
            }
            Visit::Begins(visit) | Visit::GoesOn(visit) => Ok(visit.max(before)),
        }
    }
}

/// How the controller decides about it.
type Decide = fn(&mut Controller, Time, &Enter) -> Result<Admission, Refusal>;

impl Joins {
    /// Begins to take joins, in a tokio runtime. The issuer's key signs the tokens; relays trust it.
    pub(crate) fn start(handle: Handle, issuer: SigningKey, admits: Admits) -> Joins {
        let waiting = Arc::new(Waiting::default());
        tokio::spawn(waiting.clone().follow(handle.events(), handle.lives()));
        let credentials = Credentials::new(admits, &issuer);
        Joins(Arc::new(Inner { handle, issuer, credentials, waiting }))
    }

    /// Lets a participant into a world, and returns once its relay takes it. Who asks again with the
    /// same credential and key gets what it has, with a new lease.
    ///
    /// # Errors
    /// The credential does not do, the world has no room, or the relay did not answer in time.
    pub(crate) async fn join(&self, ask: JoinAsk) -> Result<Joined, Problem> {
        let visit = Visit::Begins(ask.visit);
        self.decide(ask, visit, Controller::enter).await
    }

    /// The same, for a participant that is in: that is how a lease is renewed.
    ///
    /// # Errors
    /// As there.
    pub(crate) async fn renew(&self, ask: JoinAsk) -> Result<Joined, Problem> {
        let visit = Visit::GoesOn(ask.visit);
        self.decide(ask, visit, Controller::enter).await
    }

    /// The same, for a participant that would go to another relay: it gets a place there as well, if its
    /// own one drains or the other is nearer by far.
    ///
    /// # Errors
    /// As there, or no relay takes it. It has what it had.
    pub(crate) async fn relocate(&self, ask: JoinAsk) -> Result<Joined, Problem> {
        let visit = Visit::GoesOn(ask.visit);
        self.decide(ask, visit, Controller::relocate).await
    }

    async fn decide(&self, ask: JoinAsk, visit: Visit, decide: Decide) -> Result<Joined, Problem> {
        let right =
            self.0.credentials.check(&ask.world, ask.credential.as_deref(), &ask.client_key)?;
        let budget = right.budget(ask.budget)?;
        let new = New { right, client_key: ask.client_key, budget, measured: ask.measured, visit };
        self.admit(ask.world, new, decide).await
    }

    /// Lets somebody into a world for whom a backend answers.
    ///
    /// # Errors
    /// A value is not allowed, the world has no room, or the relay did not answer in time.
    pub(crate) async fn admit_for(&self, world: String, ask: NewMember) -> Result<Joined, Problem> {
        ask.check_subject()?;
        let client_key = ask.key()?;
        let right = Right::of_backend(ask.subject, &client_key)?;
        let (budget, measured) = (ask.budget, ask.measured);
        let new = New { right, client_key, budget, measured, visit: Visit::GoesOn(0) };
        self.admit(world, new, Controller::enter).await
    }

    /// Ends a participant's membership, or gives back the one of its places that has this address.
    ///
    /// # Errors
    /// The credential does not do, or it has no place in the world, or not that one, or has it for another visit.
    pub(crate) async fn leave(
        &self,
        client_key: &[u8; 32],
        LeaveAsk { world, credential, address, visit }: LeaveAsk,
    ) -> Result<(), Problem> {
        let right = self.right(&world, credential.as_deref(), client_key)?;
        let owner = right.owner;
        let address = address.map(|text| canopy_api::address("address", &text)).transpose()?;
        let leave = move |controller: &mut Controller, _| {
            let name = Name::new(&world).map_err(Refusal::from)?;
            let id = controller.world(&name)?.id;
            let known = controller.known_by(id, owner);
            right.check_place(known)?;
            let is_other = |known: &Member| ![0, visit.unwrap_or(0)].contains(&known.entry.visit);
            if visit.is_some() && known.is_some_and(is_other) {
                let what = "you have joined again since; that visit has the place now";
                return Err(Problem::new(409, what, "visit", "leave that one"));
            }
            if let Some(address) = address {
                return Ok(controller.give_up_place(id, owner, address)?);
            }
            if !controller.depart(id, owner) {
                let what = "you are not in it; you may have left by now";
                return Err(Problem::missing(&format!("world {world}"), what, "join it first"));
            }
            Ok(())
        };
        self.0.handle.change(leave).await.map_err(stopped)?
    }

    /// The relays that a participant should measure before it joins.
    ///
    /// # Errors
    /// The controller has stopped.
    pub(crate) async fn relays(&self) -> Result<RelaysToMeasure, Problem> {
        let relays = self.0.handle.ask(|controller, _| canopy_api::relays_to_measure(controller));
        relays.await.map_err(stopped)
    }

    /// What the credential lets whoever has the key do.
    ///
    /// # Errors
    /// The credential does not do.
    pub(super) fn right(
        &self,
        world: &str,
        credential: Option<&str>,
        client_key: &[u8; 32],
    ) -> Result<Right, Problem> {
        self.0.credentials.check(world, credential, client_key)
    }

    async fn admit(&self, world: String, new: New, decide: Decide) -> Result<Joined, Problem> {
        let New { right, client_key, budget, measured, visit } = new;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let mut last = Outcome::Unknown;
        for _ in 0..ATTEMPTS {
            let (waiting, world, measured) =
                (self.0.waiting.clone(), world.clone(), measured.clone());
            let entering = right.clone();
            let enter = move |controller: &mut Controller, now| {
                let wish = Wish { owner: entering.owner, budget, measured: &measured };
                let enter = canopy_api::enter(controller, &world, &wish)?;
                let World { id, comtrees, .. } = controller.world(&enter.world)?;
                entering.check_comtrees(comtrees)?;
                let entry = entry(controller.known_by(*id, enter.owner), &entering, visit)?;
                let subject = entering.subject.clone();
                let enter = Enter { most: entering.most(), entry, subject, ..enter };
                let admission = decide(controller, now, &enter)?;
                // Events are told by this thread, later: none of them can be missed.
                let outcome = waiting.register(admission.world, admission.address)?;
                let joined = canopy_api::joined(controller, &admission, &enter)?;
                Ok::<_, Problem>((admission, joined, outcome, entry.let_in))
            };
            let (admission, joined, outcome, let_in) =
                self.0.handle.ask(enter).await.map_err(stopped)??;
            let left = deadline.saturating_duration_since(tokio::time::Instant::now());
            let place = format!("relay {}", joined.relay.name);
            match timeout(left, outcome).await {
                Ok(Ok(Outcome::Admitted)) => {
                    let id = token_id(let_in)?;
                    return self.sign(right, id, client_key, admission, joined);
                }
                Ok(Ok(Outcome::Refused(why))) => return Err(why.into()),
                // Perhaps from the place that it had before under the same address. Who was sent away is
                // refused when it is asked for again.
                Ok(Ok(outcome @ (Outcome::Left | Outcome::Unknown))) => last = outcome,
                Ok(Err(_)) => return Err(stopped("the controller has stopped")),
                Err(_) => {
                    let what = format!("it did not answer within {} s", PATIENCE.as_secs());
                    return Err(Problem::new(504, what, &place, "ask again; the place is kept"));
                }
            }
        }
        if matches!(last, Outcome::Left) {
            let what = "the member is sent away again and again while it joins";
            return Err(Problem::new(409, what, &format!("world {world}"), "ask again"));
        }
        let what = "it has more to tell than can be followed";
        Err(Problem::new(503, what, "controller", "ask again in a second; the place is kept"))
    }

    fn sign(
        &self,
        right: Right,
        id: String,
        client_key: [u8; 32],
        admission: Admission,
        joined: Joined,
    ) -> Result<Joined, Problem> {
        let until = admission.until;
        let grant = right.grant(admission);
        let claims = Claims {
            subject: right.subject,
            id,
            expires: UnixTime(until.as_nanos() / 1_000_000_000),
            not_before: None,
            client_key,
            grant,
        };
        let token = self.0.issuer.issue(&claims).map_err(|error| {
            let remedy = "grant fewer ranges of groups, or create the world with fewer comtrees";
            Problem::new(409, error.to_string(), "token", remedy)
        })?;
        // The relay may have taken its time: what is left of the lease counts.
        let left = until.max(now()).since(now()).as_millis();
        let lease_ms = u64::try_from(left).unwrap_or(u64::MAX);
        Ok(Joined { token, lease_ms, ..joined })
    }
}

/// By what somebody with this right is in from now on, of whose place this is known.
///
/// # Errors
/// The right counts no more, or a later visit has the place.
fn entry(known: Option<&Member>, right: &Right, visit: Visit) -> Result<Entry, Problem> {
    right.check_place(known)?;
    let before = known.map_or_else(Entry::default, |known| known.entry);
    let is_in = known.is_some_and(|known| known.state == MemberState::Held);
    let let_in = right.let_in(if is_in { before.let_in } else { 0 });
    Ok(Entry { let_in, visit: visit.after(before.visit)? })
}

/// The controller does not answer any more.
pub(super) fn stopped(error: impl std::fmt::Display) -> Problem {
    Problem::new(503, error.to_string(), "controller", "ask again when it runs")
}
