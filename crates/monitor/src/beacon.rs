//! Rounds of drand, a public beacon whose values are threshold signatures: their names, their times, and the check of a signature.
//!
//! A round's text `drand CHAIN ROUND` names a network by its chain hash, which covers the network's public key and schedule. So who
//! knows the text derives the round's time, and no party has to be believed about the value. Sources: drand's specification,
//! "Beacon" and "Chain info"; RFC 9380 (hashing to curves), suite BLS12381G1_XMD:SHA-256_SSWU_RO_. Rule: docs/MONITORING-FORMAT.md,
//! "Rounds of drand".

use bls12_381::hash_to_curve::{ExpandMsgXmd, HashToCurve};
use bls12_381::{G1Affine, G1Projective, G2Affine, G2Prepared, Gt, multi_miller_loop};
use serde::{Deserialize, Serialize};
use sha2_of_bls::{Digest as _, Sha256};
use tiebreak_record::commit::Malformed;
use tiebreak_record::commit::cosignature::utc;
use tiebreak_record::commit::digest::Digest;

/// The most bytes of a file that describes a network, or has a round.
pub const FILE_MAX: u64 = 1 << 16;
/// The one scheme that is verified: signatures in G1 over the round's number alone.
pub const SCHEME: &str = "bls-unchained-g1-rfc9380";
/// The domain of the hash to G1.
const DOMAIN: &[u8] = b"BLS_SIG_BLS12381G1_XMD:SHA-256_SSWU_RO_NUL_";
/// The bytes of a signature, a compressed point of G1.
const SIGNATURE_BYTES: usize = 48;
/// The last second that dates name: the end of the year 9999.
const TIME_MAX: u64 = 253_402_300_799;
/// What `/info` says of quicknet, the League of Entropy's network with a round each three seconds.
const QUICKNET: &str = r#"{
  "public_key": "83cf0f2896adee7eb8b5f01fcad3912212c437e0073e911fb90022d3e760183c8c4b450b6a0a6c3ac6a5776a2d1064510d1fec758c921cc22b0e17e63aaf4bcb5ed66304de9cf809bd274ca73bab4af5a6e9c76a4bc09e76eae8991ef5ece45a",
  "period": 3,
  "genesis_time": 1692803367,
  "hash": "52db9ba70e0cc0f6eaf7803dd07447a1f5477735fd3f661792ba94600c84e971",
  "groupHash": "f477d5c89f21a17c863a7f937c6a6d15859414d2be09cd448d4279af331c5d3e",
  "schemeID": "bls-unchained-g1-rfc9380",
  "metadata": { "beaconID": "quicknet" }
}"#;

/// A network of drand, as its chain hash commits to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    hash: Digest,
    id: String,
    genesis: u64,
    period: u64,
    key: G2Affine,
}

/// A round's text, taken apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundName {
    /// The hash of the network's chain.
    pub chain: Digest,
    /// The round's number, from 1 on.
    pub number: u64,
}

/// A round whose signature was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Verified {
    /// The hash of the network's chain.
    pub chain: Digest,
    /// The network's name.
    pub id: String,
    /// The round's number.
    pub number: u64,
    /// The time from which on the network signs the round, in seconds since 1970.
    pub time: u64,
}

/// The reason why a value is not known to be that of the round that a text names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unverified {
    /// The network is none of the known ones.
    #[error("the round is of the drand network {0}, whose public key is not known here")]
    Chain(Digest),
    /// The value is not the network's signature over the round.
    #[error("the value is not the signature of the drand network {id} over round {number}")]
    Signature {
        /// The network's name.
        id: String,
        /// The round's number.
        number: u64,
    },
    /// A draw's date is behind its round.
    #[error(
        "the draw's date is {}, and the round is of {}: chips may have entered the register with the value known",
        utc(*.date), utc(*.round)
    )]
    Date {
        /// The draw's date, in seconds since 1970.
        date: u64,
        /// The round's time.
        round: u64,
    },
}

/// The description of a network, as `/info` gives it; by its other names, as `/v2/beacons/ID/info` does.
#[derive(Deserialize)]
struct Info {
    public_key: String,
    period: u32,
    genesis_time: u64,
    #[serde(alias = "chain_hash")]
    hash: String,
    #[serde(rename = "groupHash", alias = "genesis_seed")]
    seed: String,
    #[serde(rename = "schemeID", alias = "scheme")]
    scheme: String,
    beacon_id: Option<String>,
    metadata: Option<Metadata>,
}

#[derive(Deserialize)]
struct Metadata {
    #[serde(rename = "beaconID")]
    beacon_id: String,
}

/// A round, as `/public/NUMBER` gives it.
#[derive(Deserialize)]
struct Round {
    round: u64,
    signature: String,
    randomness: Option<String>,
}

fn wrong(what: &'static str, why: impl Into<String>) -> Malformed {
    Malformed::invalid(what, why)
}

/// `N` bytes of lower-case hexadecimal digits.
fn bytes<const N: usize>(text: &str) -> Option<[u8; N]> {
    let digit = |b: u8| match b {
        b'0'..=b'9' => Some(b - b'0'),
        b'a'..=b'f' => Some(b - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? * 16 + digit(pair[1])?));
    if text.len() != 2 * N {
        return None;
    }
    pairs.collect::<Option<Vec<u8>>>()?.try_into().ok()
}

/// A compressed point of the subgroup that is not its neutral element, for which a forger could sign.
fn key(bytes: &[u8; 96]) -> Option<G2Affine> {
    Option::<G2Affine>::from(G2Affine::from_compressed(bytes))
        .filter(|point| !bool::from(point.is_identity()))
}

impl Chain {
    /// The League of Entropy's quicknet.
    ///
    /// # Panics
    /// Never: a test reads the constant.
    pub fn quicknet() -> Chain {
        Chain::from_text(QUICKNET).expect("quicknet's description is valid")
    }

    /// Reads the JSON with which a network's servers describe it at `/CHAIN/info`.
    ///
    /// # Errors
    /// If a field is missing or outside its bounds, the scheme is not [`SCHEME`], or the chain hash does not follow from the fields.
    pub fn from_text(text: &str) -> Result<Chain, Malformed> {
        const WHAT: &str = "description of a drand network";
        if text.len() as u64 > FILE_MAX {
            return Err(Malformed::TooLarge { what: WHAT, limit: FILE_MAX });
        }
        let info: Info = serde_json::from_str(text).map_err(|error| wrong(WHAT, error.to_string()))?;
        if info.scheme != SCHEME {
            return Err(wrong(
                WHAT,
                format!("its scheme is {:?}; {SCHEME:?} is the one that is verified", info.scheme),
            ));
        }
        let id = info.beacon_id.or(info.metadata.map(|metadata| metadata.beacon_id)).unwrap_or_default();
        if id.len() > 64 || !id.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(wrong(WHAT, "its name has at most 64 visible ASCII characters"));
        }
        if info.period == 0 || info.genesis_time > TIME_MAX {
            return Err(wrong(
                WHAT,
                "its period is a second or more, and its first round before the year 10000",
            ));
        }
        let point = bytes::<96>(&info.public_key).and_then(|bytes| Some((bytes, key(&bytes)?)));
        let (public, key) = point.ok_or_else(|| wrong(WHAT, "its public key is no point of the group G2"))?;
        let seed =
            bytes::<32>(&info.seed).ok_or_else(|| wrong(WHAT, "its group hash has 64 hexadecimal digits"))?;
        let mut hash = Sha256::new();
        hash.update(info.period.to_be_bytes());
        hash.update(info.genesis_time.to_be_bytes());
        hash.update(public);
        hash.update(seed);
        // drand leaves out the name of its first network.
        if id != "default" {
            hash.update(id.as_bytes());
        }
        let hash = Digest(hash.finalize().into());
        if hash.to_string() != info.hash {
            return Err(wrong(WHAT, format!("its fields have the chain hash {hash}, and it says another")));
        }
        Ok(Chain { hash, id, genesis: info.genesis_time, period: info.period.into(), key })
    }

    /// The chain hash.
    pub fn hash(&self) -> Digest {
        self.hash
    }

    /// The network's name.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// The time of a round in seconds since 1970; `None` for round 0, and behind the year 9999.
    pub fn time(&self, number: u64) -> Option<u64> {
        let since = number.checked_sub(1)?.checked_mul(self.period)?;
        self.genesis.checked_add(since).filter(|&time| time <= TIME_MAX)
    }

    /// The first round at a time or behind it, in seconds since 1970.
    pub fn round_from(&self, time: u64) -> RoundName {
        let number = time.saturating_sub(self.genesis).div_ceil(self.period) + 1;
        RoundName { chain: self.hash, number }
    }

    /// Checks the network's signature over a round, in hexadecimal digits.
    ///
    /// # Errors
    /// If it is another text than the one signature of the round, or the round has no time.
    pub fn verify(&self, number: u64, signature: &str) -> Result<Verified, Unverified> {
        let refused = || Unverified::Signature { id: self.id.clone(), number };
        let time = self.time(number).ok_or_else(refused)?;
        let compressed = bytes::<SIGNATURE_BYTES>(signature).ok_or_else(refused)?;
        let point = Option::<G1Affine>::from(G1Affine::from_compressed(&compressed)).ok_or_else(refused)?;
        let message = Sha256::digest(number.to_be_bytes());
        let hashed = <G1Projective as HashToCurve<ExpandMsgXmd<Sha256>>>::hash_to_curve(
            &[message.as_slice()][..],
            DOMAIN,
        );
        // e(signature, generator) = e(hash, key), as one product of pairings.
        let sides = [
            (&-point, &G2Prepared::from(G2Affine::generator())),
            (&G1Affine::from(hashed), &G2Prepared::from(self.key)),
        ];
        if multi_miller_loop(&sides).final_exponentiation() != Gt::identity() {
            return Err(refused());
        }
        Ok(Verified { chain: self.hash, id: self.id.clone(), number, time })
    }
}

impl std::fmt::Display for RoundName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "drand {} {}", self.chain, self.number)
    }
}

impl RoundName {
    /// The round that a text names; `None` for texts of other forms, which name rounds that only people can look up.
    pub fn parse(text: &str) -> Option<RoundName> {
        let (chain, number) = text.strip_prefix("drand ")?.split_once(' ')?;
        let name = RoundName { chain: Digest(bytes(chain)?), number: number.parse().ok()? };
        (name.number > 0 && name.to_string() == text).then_some(name)
    }
}

/// Checks the value of a round against the text that names the round. `None` if the text has another form than a round of drand.
///
/// # Errors
/// If the network is none of `chains`, or the value is not its signature.
pub fn verify(round: &str, value: &str, chains: &[Chain]) -> Result<Option<Verified>, Unverified> {
    let Some(name) = RoundName::parse(round) else { return Ok(None) };
    let known = chains.iter().find(|chain| chain.hash == name.chain);
    known.ok_or(Unverified::Chain(name.chain))?.verify(name.number, value).map(Some)
}

/// Reads a round as drand's servers give it at `/CHAIN/public/NUMBER`: its text, its signature and what was checked. The file does not
/// name its network, so the network is the one of `chains` that signed the round.
///
/// # Errors
/// If the text is no round, its randomness is not that of its signature, or none of the networks signed it.
pub fn read(text: &str, chains: &[Chain]) -> Result<(String, Verified), Malformed> {
    const WHAT: &str = "round of drand";
    if text.len() as u64 > FILE_MAX {
        return Err(Malformed::TooLarge { what: WHAT, limit: FILE_MAX });
    }
    let round: Round = serde_json::from_str(text).map_err(|error| wrong(WHAT, error.to_string()))?;
    let signed = chains.iter().find_map(|chain| chain.verify(round.round, &round.signature).ok());
    let verified = signed.ok_or_else(|| {
        let names: Vec<&str> = chains.iter().map(Chain::id).collect();
        wrong(WHAT, format!("none of the networks {} signed round {}", names.join(", "), round.round))
    })?;
    let hashed = bytes::<SIGNATURE_BYTES>(&round.signature).map(|bytes| Digest(Sha256::digest(bytes).into()));
    if let (Some(given), Some(hashed)) = (round.randomness, hashed)
        && given != hashed.to_string()
    {
        let why = format!("its randomness is {given:.64?}, and the SHA-256 of its signature is {hashed}");
        return Err(wrong(WHAT, why));
    }
    Ok((round.signature, verified))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bls12_381::{G2Projective, Scalar};

    /// Rounds of quicknet that its servers published, with their randomness.
    const ROUNDS: [(u64, &str, &str); 2] = [
        (
            1000,
            "b44679b9a59af2ec876b1a6b1ad52ea9b1615fc3982b19576350f93447cb1125e342b73a8dd2bacbe47e4b6b63ed5e39",
            "fe290beca10872ef2fb164d2aa4442de4566183ec51c56ff3cd603d930e54fdd",
        ),
        (
            657_413,
            "b713718a38ae728dfd477991af2822e08d2f305e47718cef9f7848ce4050e7be41076862b98fad56e91a6b85b89cd97b",
            "fc1873a13f3545aeade8401532ef5519920652eee6b0d2b19ca12643b87b3587",
        ),
    ];

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// A network with a key of our own: its description in both spellings, and its signature over a round.
    fn own(period: u32, secret: Scalar) -> ([String; 2], impl Fn(u64) -> String) {
        let public = hex(&G2Affine::from(G2Projective::generator() * secret).to_compressed());
        let seed = "5e".repeat(32);
        let mut hash = Sha256::new();
        hash.update(period.to_be_bytes());
        hash.update(1_700_000_000u64.to_be_bytes());
        hash.update(bytes::<96>(&public).unwrap());
        hash.update([0x5e; 32]);
        hash.update("ours");
        let hash = hex(&hash.finalize());
        let first = format!(
            r#"{{"public_key":"{public}","period":{period},"genesis_time":1700000000,"hash":"{hash}","groupHash":"{seed}","schemeID":"{SCHEME}","metadata":{{"beaconID":"ours"}}}}"#
        );
        let second = format!(
            r#"{{"public_key":"{public}","period":{period},"genesis_time":1700000000,"genesis_seed":"{seed}","chain_hash":"{hash}","scheme":"{SCHEME}","beacon_id":"ours"}}"#
        );
        let sign = move |number: u64| {
            let message = Sha256::digest(number.to_be_bytes());
            let hashed = <G1Projective as HashToCurve<ExpandMsgXmd<Sha256>>>::hash_to_curve(
                &[message.as_slice()][..],
                DOMAIN,
            );
            hex(&G1Affine::from(hashed * secret).to_compressed())
        };
        ([first, second], sign)
    }

    #[test]
    fn published_rounds_verify_and_nothing_else_does() {
        let quicknet = Chain::quicknet();
        let known = [quicknet.clone()];
        for (number, signature, randomness) in ROUNDS {
            let name = RoundName { chain: quicknet.hash(), number }.to_string();
            let verified = verify(&name, signature, &known).unwrap().unwrap();
            assert_eq!((verified.number, verified.time), (number, 1_692_803_367 + 3 * (number - 1)));
            let file =
                format!(r#"{{"round":{number},"randomness":"{randomness}","signature":"{signature}"}}"#);
            assert_eq!(read(&file, &known).unwrap(), (signature.to_string(), verified));
            let bare = format!(r#"{{"round":{number},"signature":"{signature}"}}"#);
            assert!(read(&bare, &known).is_ok());
            // Another round, another randomness, another spelling, a changed digit, the neutral element, no point.
            assert!(read(&file.replace(&number.to_string(), "7"), &known).is_err());
            assert!(read(&file.replace(randomness, &"0".repeat(64)), &known).is_err());
            let other = RoundName { chain: quicknet.hash(), number: number + 1 }.to_string();
            let neutral = "c".to_string() + &"0".repeat(95);
            let longer = signature.to_string() + "00";
            let wrong = [&signature.to_uppercase(), &signature.replacen('b', "a", 1), &neutral, &longer, ""];
            let told = wrong.map(|value| verify(&name, value, &known).is_err());
            assert_eq!((verify(&other, signature, &known).is_err(), told), (true, [true; 5]));
        }
        let (first, second) = (ROUNDS[0], ROUNDS[1]);
        assert!(quicknet.verify(first.0, second.1).is_err());
    }

    #[test]
    fn a_network_is_the_one_of_its_chain_hash() {
        let (texts, sign) = own(30, Scalar::from(0x1234_5678_9abc_def1));
        let [chain, other] = texts.clone().map(|text| Chain::from_text(&text).unwrap());
        assert_eq!(chain, other);
        let known = [Chain::quicknet(), chain.clone()];
        let file = format!(r#"{{"round":9,"signature":"{}"}}"#, sign(9));
        let (value, verified) = read(&file, &known).unwrap();
        assert_eq!((verified.id.as_str(), verified.time), ("ours", 1_700_000_240));
        let name = format!("drand {} 9", chain.hash());
        assert_eq!(verify(&name, &value, &known).unwrap(), Some(verified));
        assert_eq!(verify(&name, &value, &known[..1]).unwrap_err(), Unverified::Chain(chain.hash()));
        assert!(read(&file, &known[..1]).is_err());
        // A description whose schedule, name or key is another one has another hash, and is refused.
        // So is one whose key is the neutral element, under which the neutral signature would verify for every round.
        let refused = Chain::from_text(&own(30, Scalar::zero()).0[0]).unwrap_err().to_string();
        assert!(refused.contains("no point of the group G2"), "{refused}");
        let key = texts[0].split('"').nth(3).unwrap();
        for (from, to) in [
            (":30,", ":3,"),
            ("1700000000", "1600000000"),
            ("\"ours\"", "\"mine\""),
            ("5e5e", "5f5e"),
            (key, QUICKNET.split('"').nth(3).unwrap()),
            (SCHEME, "pedersen-bls-chained"),
            ("1700000000", "-1"),
            (":30,", ":0,"),
            ("\"ours\"", "\"\\u001b\""),
        ] {
            assert!(Chain::from_text(&texts[0].replacen(from, to, 1)).is_err(), "{from} -> {to}");
        }
    }

    #[test]
    fn rounds_have_one_name_and_one_time() {
        let chain = Chain::quicknet();
        for (time, number) in
            [(0, 1), (1_692_803_367, 1), (1_692_803_368, 2), (1_692_803_370, 2), (1_692_806_367, 1001)]
        {
            assert_eq!(chain.round_from(time).number, number, "{time}");
        }
        assert_eq!((chain.time(0), chain.time(u64::MAX), chain.time(1 << 40)), (None, None, None));
        let name = chain.round_from(1_800_000_000).to_string();
        assert_eq!(RoundName::parse(&name).unwrap().to_string(), name);
        let hash = chain.hash().to_string();
        let upper = hash.to_uppercase();
        for text in [
            "drand 4711".to_string(),
            format!("drand {upper} 7"),
            format!("drand {hash} 0"),
            format!("drand {hash} 07"),
            format!("drand {hash} +7"),
            format!("drand {hash} 7 "),
            format!("drand  {hash} 7"),
            format!("drand {hash} 99999999999999999999"),
        ] {
            assert_eq!(RoundName::parse(&text), None, "{text}");
            assert_eq!(verify(&text, "00", std::slice::from_ref(&chain)), Ok(None));
        }
    }
}
