//! Ranks that an MPI launcher starts: MPI says who they are, and rank 0 tells the others over it where it listens.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::time::Duration;

use crate::cli::args::launchers::{COORDINATOR, outer, usage, variable};
use crate::cli::args::random::random;
use crate::cli::view::report::{Exit, Failure};
use tiebreak_record::commit::digest::Digest;
use tiebreak_train::ranks::mpi::{MEET_MAX, World};

/// What ranks know when they have met over MPI.
pub struct Met {
    pub world: World,
    /// The addresses of rank 0.
    pub coordinator: Vec<SocketAddr>,
    /// The socket at which rank 0 listens there, in rank 0.
    pub listener: Option<TcpListener>,
    pub token: String,
}

fn failed(error: impl ToString) -> Failure {
    Failure::new(Exit::Undecided, error)
}

/// Meets the other ranks over MPI.
///
/// # Errors
/// If MPI has started one process, or another number than `named` (rank and ranks) says, or rank 0 cannot listen.
pub fn met(
    named: (Option<u32>, Option<u32>),
    coordinator: Option<&str>,
    secret: &str,
    timeout: Duration,
) -> Result<Met, Failure> {
    let world = World::join(timeout).map_err(failed)?;
    let (rank, ranks) = (world.rank, world.ranks);
    if ranks == 1 {
        let why = "--transport mpi is for several ranks, and MPI has this process alone";
        return Err(usage(why).help("start all ranks by `mpirun -n N tiebreak train ... --transport mpi`"));
    }
    if named.0.is_some_and(|named| named != rank) || named.1.is_some_and(|named| named != ranks) {
        let why = format!("MPI says that this is rank {rank} of {ranks}, and --rank or --ranks says another");
        return Err(usage(why).help("leave --rank and --ranks out: MPI says them"));
    }
    let mut listener = None;
    let mut text = String::new();
    if rank == 0 {
        let listens = listen(&world, coordinator).and_then(|(address, socket)| {
            let token = match variable(secret) {
                Some(token) => token,
                None => Digest(random().map_err(|failure| failure.message)?).to_string(),
            };
            listener = Some(socket);
            let told = format!("{address}\n{token}");
            match told.len() < MEET_MAX {
                true => Ok(told),
                false => Err(format!(
                    "has {} bytes of address and {secret} to tell, and MPI's greeting has fewer than {MEET_MAX}: take a shorter secret",
                    told.len()
                )),
            }
        });
        // An error is told too, since the others wait.
        text = listens.unwrap_or_else(|why| format!("!{why}").chars().take(MEET_MAX / 4 - 1).collect());
    }
    let text = world.meet(&text, timeout).map_err(failed)?;
    if let Some(why) = text.strip_prefix('!') {
        return Err(usage(format!("rank 0 {}", why.escape_debug())).help(COORDINATOR));
    }
    let Some((address, token)) = text.split_once('\n') else {
        let why = format!("rank 0 tells {} bytes, and an address and a secret are due", text.len());
        return Err(failed(format!("--transport mpi: {why}")));
    };
    let addresses = address.to_socket_addrs().map_err(|error| usage(format!("{address}: {error}")))?;
    Ok(Met { world, coordinator: addresses.collect(), listener, token: token.to_string() })
}

/// A socket of rank 0, with the address at which the others reach it.
fn listen(world: &World, coordinator: Option<&str>) -> Result<(String, TcpListener), String> {
    let name = match coordinator {
        Some(coordinator) => coordinator.to_string(),
        None if world.local.1 == world.ranks => "127.0.0.1:0".into(),
        None => format!("{}:0", world.host),
    };
    let addresses = name.to_socket_addrs().map_err(|error| format!("cannot listen at {name}: {error}"))?;
    let addresses = outer(addresses.collect());
    if world.local.1 < world.ranks && addresses.iter().all(|address| address.ip().is_loopback()) {
        return Err(format!("cannot listen at {name}: other machines have ranks, and it is the loopback"));
    }
    let socket =
        TcpListener::bind(&addresses[..]).map_err(|error| format!("cannot listen at {name}: {error}"))?;
    let own = socket.local_addr().map_err(|error| format!("cannot listen at {name}: {error}"))?;
    // Port 0 of a name is whichever is free.
    let named = coordinator.and_then(|name| name.rsplit_once(':'));
    Ok((named.map_or(own.to_string(), |(host, _)| format!("{host}:{}", own.port())), socket))
}
