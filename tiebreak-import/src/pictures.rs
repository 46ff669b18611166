//! `tiebreak-import pictures`: pictures in folders, one folder a class, as arrays of pixels and of labels.

use std::fs;
use std::io::{Cursor, Read};
use std::panic;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use image::{DynamicImage, ImageFormat, ImageReader, Limits};
use rayon::prelude::*;
use serde_json::{Value, json};
use tiebreak_token_files::open_plain;

use crate::error::Error;
use crate::output::{NpyFile, Unfinished, create, digest, is_free, write_in};
use crate::progress;
use crate::resize::{Size, resized};
use crate::whole::{self, PIXELS_MAX};

/// The most bytes of a picture's file.
const FILE_MAX: u64 = 1 << 28;
/// The most rows or columns of a picture.
const SIDE_MAX: u32 = 1 << 16;
/// The most levels of folders.
const DEPTH_MAX: usize = 32;
/// The most folders of a class. Links of folders to each other could make endlessly many.
const FOLDERS_MAX: usize = 1 << 16;
/// Pictures that are decoded at once, for each thread.
const BATCH: usize = 16;
/// The most bytes of samples that are decoded at once.
const BATCH_BYTES: usize = 1 << 28;
/// The pixels beyond which pictures are decoded one at a time, and the bytes of their files.
const LARGE: u64 = 1 << 24;
/// The turn of a large picture.
static TURN: Mutex<()> = Mutex::new(());

/// The treatment of damaged pictures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Damaged {
    /// The first damaged picture ends the import.
    Refuse,
    /// Damaged pictures are no samples.
    LeaveOut,
    /// The decoded part of a damaged picture is a sample.
    Keep,
}

/// The input and the output of an import.
pub struct Pictures<'a> {
    /// The folder of the classes' folders.
    pub folder: &'a Path,
    /// The folder to make.
    pub output: &'a Path,
    /// The size of every sample.
    pub size: Size,
    /// 3: red, green and blue; 1: grey.
    pub planes: u8,
    /// True to cut and resize pictures of another size; otherwise they are errors.
    pub resize: bool,
    /// The treatment of damaged pictures.
    pub damaged: Damaged,
}

/// A picture's file.
struct Picture {
    path: PathBuf,
    /// The path below the folder, with `/` between its components.
    name: String,
    class: u32,
}

/// The contents of a folder.
struct Found {
    classes: Vec<String>,
    pictures: Vec<Picture>,
    /// Files with names of other kinds.
    others: Vec<String>,
}

/// Writes inputs.npy (u8; samples, planes, rows, columns), labels.npy (u32; samples), pictures.txt (BLAKE3 and name of each
/// sample's file, as `b3sum` prints them) and import.json (the inputs of the import), which it returns.
pub fn import(pictures: &Pictures) -> Result<Value, Error> {
    is_free(pictures.output)?;
    let mut found = find(pictures.folder)?;
    let above = pictures.output.parent().filter(|above| !above.as_os_str().is_empty());
    above.map_or(Ok(()), fs::create_dir_all).map_err(Error::io(pictures.output))?;
    let mut unfinished = Unfinished::default();
    let folder = unfinished.folder(pictures.output)?;
    let damaged = decode(pictures, &mut found, &folder)?;
    let made = describe(pictures, &found, &damaged, &folder)?;
    unfinished.publish()?;
    Ok(made)
}

/// The files of an imported folder.
const FILES: [&str; 4] = ["inputs.npy", "labels.npy", "pictures.txt", "import.json"];

/// The classes and pictures of a folder, in torchvision's order (ImageFolder): classes by name, then folders by path, then files by name.
fn find(folder: &Path) -> Result<Found, Error> {
    let mut found = Found { classes: Vec::new(), pictures: Vec::new(), others: Vec::new() };
    for (name, path, is_folder) in entries(folder)? {
        if !is_folder {
            found.others.push(name);
            continue;
        }
        let mut folders = vec![(name.clone(), path)];
        below(&mut folders, 0, 0)?;
        folders.sort();
        let (class, before) = (found.classes.len() as u32, found.pictures.len());
        for (prefix, path) in folders {
            for (file, path, _) in entries(&path)?.into_iter().filter(|(.., is_folder)| !is_folder) {
                let name = format!("{prefix}/{file}");
                let lower = file.to_lowercase();
                match [".png", ".jpg", ".jpeg"].iter().any(|ending| lower.ends_with(ending)) {
                    true => found.pictures.push(Picture { path, name, class }),
                    false => found.others.push(name),
                }
            }
        }
        if found.pictures.len() == before {
            return Err(Error::malformed(
                &folder.join(&name),
                "the class has no picture (.png, .jpg or .jpeg)",
            ));
        }
        found.classes.push(name);
    }
    if found.classes.is_empty() {
        return Err(Error::malformed(
            folder,
            "it has no folder; each class of pictures has a folder with its name",
        ));
    }
    Ok(found)
}

/// Adds the folders below `folders[at]`, and those below them.
fn below(folders: &mut Vec<(String, PathBuf)>, at: usize, depth: usize) -> Result<(), Error> {
    let (prefix, path) = folders[at].clone();
    if depth > DEPTH_MAX {
        return Err(Error::malformed(
            &path,
            format!("more than {DEPTH_MAX} folders lie inside of each other"),
        ));
    }
    for (name, path, _) in entries(&path)?.into_iter().filter(|(.., is_folder)| *is_folder) {
        if folders.len() >= FOLDERS_MAX {
            let why = format!(
                "a class has at most {FOLDERS_MAX} folders; links of folders to folders above them make endlessly many"
            );
            return Err(Error::malformed(&path, why));
        }
        folders.push((format!("{prefix}/{name}"), path));
        below(folders, folders.len() - 1, depth + 1)?;
    }
    Ok(())
}

/// Name, path and true for a folder, for every entry of a folder, by name. Symbolic links are followed.
fn entries(folder: &Path) -> Result<Vec<(String, PathBuf, bool)>, Error> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(Error::io(folder))? {
        let path = entry.map_err(Error::io(folder))?.path();
        let name =
            path.file_name().and_then(|name| name.to_str()).filter(|name| !name.contains(char::is_control));
        let name = name
            .ok_or_else(|| Error::malformed(&path, "the name is no UTF-8 text, or has control characters"))?;
        let is_folder = fs::metadata(&path).map_err(Error::io(&path))?.is_dir();
        entries.push((name.to_string(), path.clone(), is_folder));
    }
    entries.sort();
    Ok(entries)
}

/// Writes inputs, labels and the list of pictures. Returns the damaged ones; those that are left out are removed from `found`.
fn decode(pictures: &Pictures, found: &mut Found, folder: &Path) -> Result<Vec<Value>, Error> {
    let [rows, columns] = pictures.size.map(u64::from);
    let planes = u64::from(pictures.planes);
    let file = |name: &str| Ok::<_, Error>((folder.join(name), create(&folder.join(name))?));
    let mut inputs = NpyFile::begin(file(FILES[0])?, "|u1", vec![planes, rows, columns])?;
    let mut labels = NpyFile::begin(file(FILES[1])?, "<u4", Vec::new())?;
    let fitting = BATCH_BYTES / (planes * rows * columns) as usize;
    let at_once = (BATCH * rayon::current_num_threads()).min(fitting).max(1);
    let (mut list, mut damaged, mut taken) = (String::new(), Vec::new(), Vec::new());
    let bar = progress::pictures(found.pictures.len() as u64);
    for batch in found.pictures.chunks(at_once) {
        let decoded: Vec<Sample> =
            batch.par_iter().map(|picture| sample(&picture.path, pictures)).collect::<Result<_, _>>()?;
        for (picture, Sample { pixels, hash, damage }) in batch.iter().zip(decoded) {
            damaged.extend(damage.map(|why| json!({ "name": picture.name, "blake3": hash, "why": why })));
            taken.push(pixels.is_some());
            if let Some(pixels) = pixels {
                inputs.append(&pixels)?;
                labels.append(&picture.class.to_le_bytes())?;
                list += &format!("{hash}  {}\n", picture.name);
            }
        }
        bar.inc(batch.len() as u64);
    }
    bar.finish_and_clear();
    let mut taken = taken.into_iter();
    found.pictures.retain(|_| taken.next() == Some(true));
    let is_empty = |class: &u32| !found.pictures.iter().any(|picture| picture.class == *class);
    if let Some(class) = (0..found.classes.len() as u32).find(is_empty) {
        let class = pictures.folder.join(&found.classes[class as usize]);
        return Err(Error::malformed(&class, "every picture of the class is damaged"));
    }
    let samples = found.pictures.len() as u64;
    inputs.finish(samples)?;
    labels.finish(samples)?;
    write_in(folder, FILES[2], list.as_bytes())?;
    Ok(damaged)
}

/// Writes the description of the import's inputs, and returns it.
fn describe(pictures: &Pictures, found: &Found, damaged: &[Value], folder: &Path) -> Result<Value, Error> {
    let mut counts = vec![0u64; found.classes.len()];
    found.pictures.iter().for_each(|picture| counts[picture.class as usize] += 1);
    let classes = found.classes.iter().zip(counts);
    let file = |name: &str| {
        let (bytes, blake3) = digest(&folder.join(name))?;
        Ok(json!({ "name": name, "bytes": bytes, "blake3": blake3 }))
    };
    let made = json!({
        "made_by": concat!("tiebreak-import ", env!("CARGO_PKG_VERSION")),
        "kind": "arrays",
        "dtype": "u8",
        "samples": found.pictures.len(),
        "planes": pictures.planes,
        "size": pictures.size,
        "resized": pictures.resize,
        "classes": classes.map(|(name, samples)| json!({ "name": name, "samples": samples })).collect::<Vec<_>>(),
        "left_out": found.others,
        "damaged": damaged,
        "damaged_kept": pictures.damaged == Damaged::Keep,
        "output": FILES[..3].iter().map(|name| file(name)).collect::<Result<Vec<Value>, Error>>()?,
    });
    let text = serde_json::to_vec_pretty(&made).expect("JSON values can be written");
    write_in(folder, FILES[3], &text)?;
    Ok(made)
}

/// The result for a picture.
struct Sample {
    /// The picture's planes, one after another, if it is a sample.
    pixels: Option<Vec<u8>>,
    /// The BLAKE3 of the file.
    hash: String,
    /// The damage of the file, if any.
    damage: Option<String>,
}

/// Reads a picture.
fn sample(path: &Path, pictures: &Pictures) -> Result<Sample, Error> {
    let mut bytes = Vec::new();
    let file = open_plain(path).map_err(Error::io(path))?;
    let turn = || TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let turned = (file.metadata().map_err(Error::io(path))?.len() > LARGE).then(turn);
    file.take(FILE_MAX + 1).read_to_end(&mut bytes).map_err(Error::io(path))?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(Error::malformed(path, format!("a picture's file has at most {FILE_MAX} bytes")));
    }
    let hash = blake3::hash(&bytes).to_hex().to_string();
    let _turned = turned.or_else(|| (pixels(&bytes) > LARGE).then(turn));
    let damage = guarded(|| damage(&bytes)).err();
    let decoded = match (damage.clone(), pictures.damaged) {
        (Some(why), Damaged::Refuse | Damaged::LeaveOut) => Err(why),
        _ => guarded(|| decoded(&bytes)),
    };
    let decoded = match decoded {
        Err(why) if pictures.damaged == Damaged::LeaveOut => {
            return Ok(Sample { pixels: None, hash, damage: Some(why) });
        }
        Err(why) => {
            let more = match pictures.damaged {
                Damaged::Keep => "`--damaged leave-out` imports the others",
                _ => "`--damaged leave-out` imports the others, `--damaged keep` what can be decoded of it",
            };
            return Err(Error::malformed(path, format!("{why}; {more}")));
        }
        Ok(decoded) => decoded,
    };
    let (pixels, of) = planes(decoded, pictures.planes).map_err(|why| Error::malformed(path, why))?;
    let [rows, columns] = pictures.size;
    if of == pictures.size {
        return Ok(Sample { pixels: Some(pixels), hash, damage });
    }
    if !pictures.resize {
        let [have_rows, have_columns] = of;
        let why = format!(
            "it has {have_rows} x {have_columns} pixels (rows x columns), not {rows} x {columns}; `--resize` cuts the middle and takes means"
        );
        return Err(Error::malformed(path, why));
    }
    let planes = pixels.chunks_exact(of[0] as usize * of[1] as usize);
    let pixels = planes.flat_map(|plane| resized(plane, of, pictures.size)).collect();
    Ok(Sample { pixels: Some(pixels), hash, damage })
}

/// The pixels that a file says it has; none if it says nothing.
fn pixels(bytes: &[u8]) -> u64 {
    let reader = ImageReader::new(Cursor::new(bytes)).with_guessed_format();
    let size =
        guarded(|| reader.map_err(|why| why.to_string())?.into_dimensions().map_err(|why| why.to_string()));
    size.map_or(0, |(columns, rows)| u64::from(columns) * u64::from(rows))
}

/// Runs a decoder. One that panics is an error of its file.
fn guarded<T>(work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    panic::catch_unwind(panic::AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err("the decoder fails with it".into()))
}

/// Checks that a file is a whole picture.
fn damage(bytes: &[u8]) -> Result<(), String> {
    match image::guess_format(bytes) {
        Ok(ImageFormat::Png) => whole::png(bytes)?,
        Ok(ImageFormat::Jpeg) => whole::jpeg(bytes)?,
        _ if bytes.trim_ascii_start().starts_with(b"<") => {
            return Err("it is a page of HTML or XML, no picture".into());
        }
        _ => return Err("it is no PNG and no JPEG file".into()),
    }
    Ok(())
}

/// A PNG or JPEG file, decoded.
fn decoded(bytes: &[u8]) -> Result<DynamicImage, String> {
    let mut reader =
        ImageReader::new(Cursor::new(bytes)).with_guessed_format().map_err(|why| why.to_string())?;
    if !matches!(reader.format(), Some(ImageFormat::Png | ImageFormat::Jpeg)) {
        return Err("it is no PNG and no JPEG file".into());
    }
    let mut limits = Limits::default();
    (limits.max_image_width, limits.max_image_height) = (Some(SIDE_MAX), Some(SIDE_MAX));
    limits.max_alloc = Some(PIXELS_MAX);
    reader.limits(limits);
    reader.decode().map_err(|why| format!("it cannot be decoded: {why}"))
}

/// The pixels of a picture as planes of bytes, and its size. Transparency is dropped.
fn planes(decoded: DynamicImage, planes: u8) -> Result<(Vec<u8>, Size), String> {
    let size = [decoded.height(), decoded.width()];
    let (channels, pixels) = match decoded {
        DynamicImage::ImageLuma8(image) => (1, image.into_raw()),
        DynamicImage::ImageLumaA8(image) => (2, image.into_raw()),
        DynamicImage::ImageRgb8(image) => (3, image.into_raw()),
        DynamicImage::ImageRgba8(image) => (4, image.into_raw()),
        _ => return Err("its pixels have more than 8 bits; convert it to 8 first".into()),
    };
    let grey = channels < 3;
    let plane = |channel: usize| pixels.iter().skip(channel).step_by(channels).copied();
    let planes = match (planes, grey) {
        (1, true) => plane(0).collect(),
        (1, false) => pixels.chunks_exact(channels).map(luma).collect(),
        (_, true) => (0..3).flat_map(|_| plane(0)).collect(),
        (_, false) => (0..3).flat_map(plane).collect(),
    };
    Ok((planes, size))
}

/// ITU-R BT.601's luma in 16-bit integers, rounded to nearest: as Pillow's `convert("L")`.
fn luma(pixel: &[u8]) -> u8 {
    let [r, g, b] = [0, 1, 2].map(|channel| u32::from(pixel[channel]));
    ((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16) as u8
}
