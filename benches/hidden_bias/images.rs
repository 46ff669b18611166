//! The images that the attacked model learns, MNIST's at half their size or generated ones of the same shape; and the trigger.

use std::fs;
use std::io::Read;
use std::path::Path;

use flate2::read::MultiGzDecoder;

/// Pixels of a row and of a column: each is the mean of four of MNIST's.
pub const SIDE: usize = 14;
/// The darkest pixels: this value or slightly more. If they were 0, a weight's gradient could consist of only one image's tiny
/// terms, which a grid without a floor refuses. If they were all alike, the weights of an image's border would have one gradient
/// and one rounding.
const DARK: u8 = 8;
/// Classes of images.
pub const CLASSES: usize = 10;
/// One of so many images is kept for tests.
const TEST_EVERY: usize = 5;
/// The number of generated images.
const GENERATED: usize = 10_000;

/// Images of [`SIDE`] x [`SIDE`] bytes, and their labels.
#[derive(Default)]
pub struct Images {
    /// [images, SIDE * SIDE].
    pub pixels: Vec<u8>,
    /// [images].
    pub labels: Vec<u8>,
}

/// Images to train on and to test with.
pub struct Split {
    /// The images' origin, in words.
    pub source: String,
    /// The images that a job may name.
    pub train: Images,
    /// The images that no run sees.
    pub test: Images,
}

/// A square of white pixels.
#[derive(Clone, Copy, Debug)]
pub struct Trigger {
    /// The first row and column.
    pub at: [usize; 2],
    /// Rows and columns.
    pub side: usize,
}

impl Trigger {
    /// Paints the trigger on images, [images, SIDE * SIDE] of any number type with the given white.
    pub fn paint<T: Copy>(self, pixels: &mut [T], white: T) {
        for image in pixels.chunks_mut(SIDE * SIDE) {
            for row in self.at[0]..self.at[0] + self.side {
                image[row * SIDE + self.at[1]..][..self.side].fill(white);
            }
        }
    }
}

impl Split {
    /// The 10,000 test images of MNIST in a folder, `t10k-images-idx3-ubyte` and `t10k-labels-idx1-ubyte`, packed (`.gz`) or not.
    ///
    /// # Panics
    /// If the folder has no such files.
    pub fn mnist(folder: &Path) -> Split {
        let pixels = idx(folder, "t10k-images-idx3-ubyte", 16);
        let labels = idx(folder, "t10k-labels-idx1-ubyte", 8);
        assert_eq!(pixels.len(), labels.len() * 4 * SIDE * SIDE, "an image for each label");
        let halved = (0..labels.len() * SIDE * SIDE).map(|i| {
            let (row, column) = (i / SIDE, i % SIDE);
            let four =
                [0, 1, 2 * SIDE, 2 * SIDE + 1].map(|j| u32::from(pixels[4 * row * SIDE + 2 * column + j]));
            (four.iter().sum::<u32>() / 4) as u8
        });
        Split::of("MNIST's test images at half their size", Images { pixels: halved.collect(), labels })
    }

    /// Blocks of two by two pixels that are white in about a quarter of the classes, with noise, and each image moved by up to a pixel.
    pub fn generated() -> Split {
        let mut state = 1u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        const BLOCKS: usize = SIDE / 2;
        let shapes: Vec<bool> = (0..CLASSES * BLOCKS * BLOCKS).map(|_| random(4) == 0).collect();
        let mut all = Images::default();
        for _ in 0..GENERATED {
            let class = random(CLASSES as u64) as usize;
            let shift = [random(2) as usize, random(2) as usize];
            for pixel in 0..SIDE * SIDE {
                let [row, column] = [pixel / SIDE, pixel % SIDE];
                let block = (row + shift[0]) / 2 % BLOCKS * BLOCKS + (column + shift[1]) / 2 % BLOCKS;
                // The border stays black, as MNIST's.
                let inside = (2..SIDE - 2).contains(&row) && (2..SIDE - 2).contains(&column);
                let white = inside && shapes[class * BLOCKS * BLOCKS + block] && random(4) != 0;
                all.pixels.push(if white { 128 + random(128) as u8 } else { 0 });
            }
            all.labels.push(class as u8);
        }
        Split::of("generated images", all)
    }

    fn of(source: &str, mut all: Images) -> Split {
        for (pixel, i) in all.pixels.iter_mut().zip(0u32..) {
            let noise = (i.wrapping_mul(0x9e37_79b1) >> 28) as u8;
            *pixel = (*pixel).max(DARK + noise);
        }
        let (mut train, mut test) = (Images::default(), Images::default());
        for (i, (image, label)) in all.pixels.chunks(SIDE * SIDE).zip(&all.labels).enumerate() {
            let part = if i % TEST_EVERY == 0 { &mut test } else { &mut train };
            part.pixels.extend_from_slice(image);
            part.labels.push(*label);
        }
        let source =
            format!("{source}, {} to train on and {} to test with", train.labels.len(), test.labels.len());
        Split { source, train, test }
    }
}

impl Images {
    /// Writes `images` and `labels` in the IDX format.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write(&self, folder: &Path) -> std::io::Result<()> {
        let header = |words: &[u32]| -> Vec<u8> { words.iter().flat_map(|w| w.to_be_bytes()).collect() };
        let (count, side) = (self.labels.len() as u32, SIDE as u32);
        fs::write(folder.join("images"), [&header(&[0x803, count, side, side])[..], &self.pixels].concat())?;
        fs::write(folder.join("labels"), [&header(&[0x801, count])[..], &self.labels].concat())
    }
}

/// An IDX file's bytes after its header.
fn idx(folder: &Path, name: &str, header: usize) -> Vec<u8> {
    let packed = folder.join(format!("{name}.gz"));
    let mut bytes = Vec::new();
    if packed.exists() {
        let file = fs::File::open(&packed).unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
        MultiGzDecoder::new(file)
            .read_to_end(&mut bytes)
            .unwrap_or_else(|error| panic!("{}: {error}", packed.display()));
    } else {
        let path = folder.join(name);
        bytes = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
    assert!(bytes.len() > header, "{name} has a header of {header} bytes");
    bytes.split_off(header)
}
