//! The CPU engine: portable Rust on all cores, wider vectors where the machine has them.

mod map;
mod reduce;

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::reference::last_uses;
use super::{Compiled, Engine, EngineError, Observer, Tensor};
