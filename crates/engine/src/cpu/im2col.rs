//! The patches of a convolution on the CPU: runs of channels are copied.

use rayon::prelude::*;

use tiebreak_contract::program::im2col::ConvGeometry;

/// Writes the patches of `input` [N, height, width, channels] into `out`, one task for each row of patches.
pub(crate) fn run(
    input: &[u32],
    [height, width, channels]: [u32; 3],
    geometry: &ConvGeometry,
    out: &mut [u32],
) {
    let [down, across] = geometry.size;
    let [taps_down, taps_across] = geometry.kernel;
    let pixel = channels as usize;
    let line = (across * taps_down * taps_across) as usize * pixel;
    out.par_chunks_mut(line.max(1)).enumerate().for_each(|(number, out)| {
        let (sample, y) = (number / down as usize, (number % down as usize) as u32);
        let mut places = out.chunks_exact_mut(pixel);
        for x in 0..across {
            for ky in 0..taps_down {
                let row = geometry.source(y, ky, height);
                for kx in 0..taps_across {
                    let place = places.next().expect("a line has every place");
                    match row.zip(geometry.source(x, kx, width)) {
                        None => place.fill(0),
                        Some((row, column)) => {
                            let at =
                                (sample * height as usize + row as usize) * width as usize + column as usize;
                            place.copy_from_slice(&input[at * pixel..][..pixel]);
                        }
                    }
                }
            }
        }
    });
}
