//! The registered files: one for the socket that sends by address, one for each member's socket.

use super::ring::Ring;
use canopy_net::{Group, Refused, Socket};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;

/// Where the socket is that sends by address.
const BY_ADDRESS: u32 = 0;

/// Which file serves whom. The files belong to one sending socket, whose address and port they
/// have; with another everything begins anew.
pub(super) struct Members {
    /// The sending socket's, or 0.
    socket: u64,
    by_address: bool,
    /// The place of each member's file; places begin at 1.
    places: HashMap<SocketAddr, u32>,
    /// Who has the file at place 1 and following, and the group that used it last.
    holders: Vec<Option<(SocketAddr, u64)>>,
    /// The place that is looked at next when one is needed.
    next: usize,
    /// What follows is for the group of this stamp.
    stamp: u64,
    files: Vec<Option<u32>>,
}

impl Members {
    /// For a table of `files`.
    pub(super) fn new(files: usize) -> Members {
        let most = files.saturating_sub(1);
        Members {
            socket: 0,
            by_address: false,
            places: HashMap::with_capacity(most),
            holders: vec![None; most],
            next: 0,
            stamp: 0,
            files: Vec::new(),
        }
    }

    /// The file of the socket itself, if it can have one.
    pub(super) fn file_of(&mut self, ring: &Ring, socket: &Socket) -> Option<u32> {
        self.serve(ring, socket);
        self.by_address.then_some(BY_ADDRESS)
    }

    /// Finds or opens a file for every member of the group.
    pub(super) fn prepare(
        &mut self,
        ring: &Ring,
        socket: &Socket,
        group: &Group,
    ) -> Result<(), Refused> {
        let (members, most) = (group.members(), self.holders.len());
        if members.len() > most {
            return Err(Refused::TooManyMembers { members: members.len(), most });
        }
        self.serve(ring, socket);
        if self.stamp == group.stamp() {
            return Ok(());
        }
        self.stamp = group.stamp();
        self.files.clear();
        for member in members {
            let place = self.places.get(member).copied();
            if let Some(place) = place {
                self.holders[place as usize - 1] = Some((*member, self.stamp));
            }
            self.files.push(place);
        }
        for (index, member) in members.iter().enumerate() {
            if self.files[index].is_none() {
                self.files[index] = self.find_or_open(ring, socket, *member);
            }
        }
        Ok(())
    }

    /// The file for the member at `index` of the group that was prepared; none if it is served
    /// with plain sends.
    pub(super) fn file(&self, index: usize) -> Option<u32> {
        self.files[index]
    }

    /// Opens a new file for the member when it is next prepared.
    pub(super) fn forget(&mut self, member: SocketAddr) {
        self.stamp = 0;
        if let Some(place) = self.places.remove(&member) {
            self.holders[place as usize - 1] = None;
        }
    }

    fn serve(&mut self, ring: &Ring, socket: &Socket) {
        if self.socket == socket.id() {
            return;
        }
        self.socket = socket.id();
        self.by_address = ring.register(BY_ADDRESS, socket.sending().as_raw_fd()).is_ok();
        self.places.clear();
        self.holders.fill(None);
        self.stamp = 0;
    }

    fn find_or_open(&mut self, ring: &Ring, socket: &Socket, member: SocketAddr) -> Option<u32> {
        if let Some(place) = self.places.get(&member) {
            // It is a member twice.
            return Some(*place);
        }
        let place = self.free_place()?;
        // The ring keeps the socket; the descriptor is closed, so that sockets of members do not
        // count among the files that the process may have open.
        open(ring, socket, member, place).ok()?;
        self.holders[place as usize - 1] = Some((member, self.stamp));
        self.places.insert(member, place);
        Some(place)
    }

    /// A place that no member of the group at hand has.
    fn free_place(&mut self) -> Option<u32> {
        for _ in 0..self.holders.len() {
            let place = self.next;
            self.next = (self.next + 1) % self.holders.len();
            match self.holders[place] {
                Some((_, stamp)) if stamp == self.stamp => {}
                holder => {
                    if let Some((holder, _)) = holder {
                        self.places.remove(&holder);
                        self.holders[place] = None;
                    }
                    return Some(place as u32 + 1);
                }
            }
        }
        None
    }
}

fn open(ring: &Ring, socket: &Socket, member: SocketAddr, place: u32) -> io::Result<()> {
    let mapped = matches!(member, SocketAddr::V6(v6) if v6.ip().to_ipv4_mapped().is_some());
    if mapped || member.is_ipv4() != socket.local_address().is_ipv4() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    ring.register(place, socket.open_towards(member)?.as_raw_fd())
}
