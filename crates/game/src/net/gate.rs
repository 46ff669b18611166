//! Limits on a server's clients: requests a second, and connections at a time, by address.
//!
//! Strangers share no limit with the referee. A connection counts as a stranger's until its pass, or the signature of its
//! question, proves the referee; then it leaves the strangers' lane. A full lane still admits newcomers and ends its oldest
//! connections instead, first those of the address with the most connections. So idle connections keep nobody out, and a client
//! that speaks at once is heard.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use prometheus_client::metrics::gauge::Gauge;
use tokio::sync::Notify;

/// The most addresses that have a bucket of their own; all others share one.
const ADDRESSES_MAX: usize = 4096;

/// The owner of a connection: an IPv4 address, or the 64 bits of an IPv6 address that identify a network's customer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(u128);

impl From<IpAddr> for Address {
    fn from(address: IpAddr) -> Address {
        match address.to_canonical() {
            IpAddr::V4(address) => Address(u128::from(u32::from(address))),
            IpAddr::V6(address) => Address(u128::from(address) >> 64 << 64 | 1 << 63),
        }
    }
}

/// A bucket of requests: it fills with time, and each request takes one. The bucket holds at most twice its rate.
#[derive(Clone, Copy)]
struct Bucket {
    left: f64,
    at: Instant,
}

impl Bucket {
    fn new(rate: f64, now: Instant) -> Bucket {
        Bucket { left: 2.0 * rate, at: now }
    }

    fn fill(&mut self, rate: f64, now: Instant) {
        let since = now.saturating_duration_since(self.at).as_secs_f64();
        *self = Bucket { left: (self.left + since * rate).min(2.0 * rate), at: now };
    }

    fn take(&mut self, rate: f64, now: Instant) -> bool {
        self.fill(rate, now);
        let there = self.left >= 1.0;
        self.left -= if there { 1.0 } else { 0.0 };
        there
    }
}

/// The budget for requests of one kind: a bucket for each address, and one for all.
pub(crate) struct Budget {
    each: f64,
    all: f64,
    state: Mutex<Buckets>,
}

struct Buckets {
    addresses: HashMap<Address, Bucket>,
    others: Bucket,
    all: Bucket,
}

impl Budget {
    /// A budget of so many requests a second for one address, and for all together.
    pub fn new(each: u32, all: u32) -> Budget {
        let (each, all, now) = (f64::from(each.max(1)), f64::from(all.max(1)), Instant::now());
        let (others, all_of_them) = (Bucket::new(each, now), Bucket::new(all, now));
        Budget {
            each,
            all,
            state: Mutex::new(Buckets { addresses: HashMap::new(), others, all: all_of_them }),
        }
    }

    /// Takes one of an address's requests, and returns true if one was left.
    pub fn take(&self, address: Address, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let state = &mut *state;
        if state.addresses.len() >= ADDRESSES_MAX && !state.addresses.contains_key(&address) {
            // An address with a full bucket loses nothing when it is forgotten.
            state.addresses.retain(|_, bucket| {
                bucket.fill(self.each, now);
                bucket.left < 2.0 * self.each
            });
        }
        let bucket = match state.addresses.len() < ADDRESSES_MAX || state.addresses.contains_key(&address) {
            true => state.addresses.entry(address).or_insert(Bucket::new(self.each, now)),
            false => &mut state.others,
        };
        bucket.take(self.each, now) && state.all.take(self.all, now)
    }
}

/// Connections at a time.
pub struct Lane {
    max: usize,
    each: usize,
    state: Mutex<Inside>,
    /// The number of connections inside, for metrics.
    shown: Gauge,
}

#[derive(Default)]
struct Inside {
    next: u64,
    places: BTreeMap<u64, (Address, Arc<Notify>)>,
}

/// A connection's place in a lane; dropping it leaves the lane.
pub struct Place {
    lane: Arc<Lane>,
    number: u64,
}

impl Lane {
    /// A lane of so many connections, and of so many from one address.
    pub fn new(max: u32, each: u32) -> Arc<Lane> {
        Lane::shown(max, each, Gauge::default())
    }

    /// The same lane, with a gauge that shows how many are inside.
    pub fn shown(max: u32, each: u32, shown: Gauge) -> Arc<Lane> {
        let [max, each] = [max, each].map(|most| most.max(1) as usize);
        Arc::new(Lane { max, each, state: Mutex::default(), shown })
    }

    /// Admits a connection. If the lane is full, another connection is ended: its `end` is notified.
    pub fn enter(self: &Arc<Lane>, address: Address, end: Arc<Notify>) -> Place {
        let mut state = lock(&self.state);
        let of = |state: &Inside, address: Address| {
            state.places.values().filter(|(from, _)| *from == address).count()
        };
        let crowded = if of(&state, address) >= self.each {
            Some(address)
        } else if state.places.len() >= self.max {
            let froms = state.places.values().map(|(from, _)| *from);
            froms.max_by_key(|from| of(&state, *from))
        } else {
            None
        };
        let oldest =
            |crowded| state.places.iter().find(|(_, (from, _))| *from == crowded).map(|(number, _)| *number);
        if let Some((_, ended)) = crowded.and_then(oldest).and_then(|number| state.places.remove(&number)) {
            // The notification is kept until that connection waits for it.
            ended.notify_one();
        }
        let number = state.next;
        state.next += 1;
        state.places.insert(number, (address, end));
        self.shown.set(state.places.len() as i64);
        Place { lane: self.clone(), number }
    }

    /// The number of connections inside.
    pub fn len(&self) -> usize {
        lock(&self.state).places.len()
    }

    /// True if no connection is inside.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = lock(&self.lane.state);
        state.places.remove(&self.number);
        self.lane.shown.set(state.places.len() as i64);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No code panics while it holds a lock here; even if it did, the maps would be whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, Ipv6Addr};
    use std::time::Duration;

    use super::*;

    fn v4(last: u32) -> Address {
        IpAddr::from(Ipv4Addr::from(last)).into()
    }

    #[test]
    fn a_bucket_gives_its_rate_and_twice_that_at_once() {
        let (budget, begin) = (Budget::new(5, 8), Instant::now());
        let taken = |from: u32, at: u64| {
            let now = begin + Duration::from_millis(at);
            (0..100).filter(|_| budget.take(v4(from), now)).count()
        };
        assert_eq!([taken(1, 0), taken(1, 100), taken(1, 1100), taken(1, 60_000)], [10, 0, 5, 10]);
        // Another address has a bucket of its own, and all together one more.
        assert_eq!([taken(2, 60_000), taken(3, 60_000)], [6, 0]);
    }

    #[test]
    fn buckets_of_many_addresses_take_bounded_memory() {
        let (budget, begin) = (Budget::new(1, 1_000_000), Instant::now());
        let many = ADDRESSES_MAX as u32 + 100;
        let taken = (0..many).filter(|from| budget.take(v4(*from), begin)).count();
        assert_eq!(taken, ADDRESSES_MAX + 2);
        assert_eq!(lock(&budget.state).addresses.len(), ADDRESSES_MAX);
        assert!(budget.take(v4(many), begin + Duration::from_secs(9)));
        assert_eq!(lock(&budget.state).addresses.len(), 1);
    }

    #[test]
    fn a_full_lane_ends_the_oldest_of_whom_has_most() {
        let shown = Gauge::default();
        let lane = Lane::shown(4, 3, shown.clone());
        let ends: Vec<Arc<Notify>> = (0..7).map(|_| Arc::default()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let ended = |connection: usize| {
            let end = ends[connection].notified();
            runtime.block_on(async { tokio::time::timeout(Duration::from_millis(1), end).await.is_ok() })
        };
        let enter = |connection: usize, from: u32| lane.enter(v4(from), ends[connection].clone());
        let _inside = [enter(0, 7), enter(1, 1), enter(2, 1), enter(3, 1)];
        assert!((0..4).all(|connection| !ended(connection)));
        let _fourth_of_one_address = enter(4, 1);
        assert_eq!([ended(0), ended(1), ended(2)], [false, true, false]);
        let newcomer = enter(5, 8);
        assert_eq!([ended(0), ended(2), ended(3), lane.len() == 4], [false, true, false, true]);
        assert_eq!(shown.get(), 4);
        drop(newcomer);
        assert_eq!(shown.get(), 3);
        let _there_is_room = enter(6, 9);
        assert!((3..7).all(|connection| !ended(connection)));
    }

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let v6 = |high: u128, low: u128| Address::from(IpAddr::from(Ipv6Addr::from(high << 64 | low)));
        assert_eq!(v6(5, 1), v6(5, 2));
        assert_ne!(v6(5, 1), v6(6, 1));
        assert_eq!(v6(0, 0xffff_0000_0007), v4(7));
    }
}
