//! Types, memory, control flow and functions of WGSL, translated and run on the host.

mod common;

use common::{host, kernel, run};
use cuda_bridge::host::{Buffer, Checks, HostError};
use cuda_bridge::translate::{ParameterKind, TranslateError, translate};

const BUFFERS: &str = "@group(0) @binding(0) var<storage, read> input: array<u32>;
@group(0) @binding(1) var<storage, read_write> output: array<u32>;
";

/// Runs one invocation; a body that reads `input` and writes `output`.
fn one(declarations: &str, body: &str, input: &[u32], outputs: usize) -> Vec<u32> {
    let text = format!("{BUFFERS}{declarations}\n@compute @workgroup_size(1)\nfn main() {{\n{body}\n}}");
    run(&text, input, outputs, [1; 3])
}

#[test]
fn loops_end_as_they_should() {
    let body = "
    var n = 0u;
    // continue runs the end of the loop, which sees what the body declared.
    loop {
        let step = input[n & 1u];
        if (n == 4u) { n += 10u; continue; }
        output[n] = step;
        continuing {
            n += step;
            break if n > 20u;
        }
    }
    output[30] = n;
    var count = 0u;
    for (var i = 0u; i < 10u; i++) {
        var fresh: u32; // zero in each round
        fresh += i;
        switch (i % 4u) {
            case 1u, 2u: { continue; }
            case 3u: { break; }
            default: { count += 100u; }
        }
        count += fresh;
    }
    output[31] = count;
    var w = 0u;
    while (true) {
        w++;
        if (w == 7u) { break; }
        loop { if (w > 3u) { break; } w += 2u; }
    }
    output[32] = w;";
    let have = one("", body, &[1, 3], 33);
    let mut want = vec![0x5555_5555; 33];
    // n: 0, +1 = 1, +3 = 4, then 14 without a store and +1 = 15, +3 = 18, +1 = 19, +3 = 22.
    (want[0], want[1], want[15], want[18], want[19], want[30]) = (1, 3, 3, 1, 3, 22);
    let step = |i: u32| if i.is_multiple_of(4) { 100 + i } else { i };
    want[31] = (0..10).filter(|i| ![1, 2].contains(&(i % 4))).map(step).sum::<u32>();
    want[32] = 7;
    assert_eq!(have, want);
}

#[test]
fn switches_choose_one_case() {
    let body = "
    for (var i = 0u; i < 8u; i++) {
        let x = bitcast<i32>(input[i]);
        switch (x) {
            case -2147483648: { output[i] = 1u; }
            case -1, 5: { if (i > 4u) { output[i] = 2u; break; } output[i] = 3u; }
            default: { output[i] = 4u; }
            case 7: { }
        }
    }";
    let have = one("", body, &[1 << 31, u32::MAX, 5, 6, 7, 5, u32::MAX, 0], 8);
    assert_eq!(have, [1, 3, 3, 4, 0x5555_5555, 2, 2, 4]);
}

#[test]
fn functions_take_values_and_references() {
    let declarations = "
struct Pair { first: u32, second: vec2<u32> }
var<private> calls: u32 = 5u;
var<private> table: array<u32, 4>;
const SQUARES: array<vec2<u32>, 3> = array<vec2<u32>, 3>(vec2<u32>(0u, 1u), vec2<u32>(1u, 1u), vec2<u32>(2u, 4u));
fn change(p: ptr<function, Pair>, x: ptr<function, u32>, t: ptr<private, array<u32, 4>>, by: u32) -> u32 {
    calls++;
    (*p).second.y += by;
    *x = *x * 2u;
    (*t)[by & 3u] += 1u;
    return (*p).first;
}
fn early(x: u32) -> u32 { if (x > 3u) { return 9u; } else { return x; } }
fn pair(x: u32) -> Pair { return Pair(x, vec2<u32>(x + 1u, x + 2u)); }";
    let body = "
    var p = pair(10u);
    var x = array<u32, 3>(1u, 2u, 3u);
    let before = x[1];
    let copy = x;
    let first = change(&p, &x[1], &table, input[0]);
    output[0] = first; output[1] = p.second.x; output[2] = p.second.y;
    output[3] = x[1]; output[4] = before; output[5] = copy[1]; output[6] = calls;
    output[7] = table[3]; output[8] = early(input[0]); output[9] = early(2u);
    output[10] = SQUARES[input[1]].y; output[11] = SQUARES[2].y; output[12] = pair(1u).second.y;
    var zero: Pair;
    output[13] = zero.second.y + zero.first;";
    assert_eq!(one(declarations, body, &[7, 2], 14), [10, 11, 19, 4, 2, 2, 6, 1, 9, 2, 4, 4, 3, 0]);
}

#[test]
fn loads_happen_where_they_stand() {
    let body = "
    let before = output[0];
    output[0] = 7u;
    let after = output[0];
    output[1] = before; output[2] = after;
    // The right side is not evaluated, so its index out of bounds does not matter.
    if (input[0] > 100u && input[input[0]] == 1u) { output[3] = 1u; } else { output[3] = 2u; }";
    assert_eq!(one("", body, &[3], 4), [7, 0x5555_5555, 7, 2]);
}

#[test]
fn places_out_of_bounds_become_the_last_ones() {
    let body = "
    var local = array<u32, 3>(1u, 2u, 3u);
    let far = bitcast<i32>(input[1]);
    output[0] = input[100]; output[1] = local[input[0]]; output[2] = local[far];
    local[input[0]] = 8u;
    output[3] = local[2]; output[4] = arrayLength(&input); output[5] = arrayLength(&output);
    output[input[0]] = 77u;";
    assert_eq!(one("", body, &[u32::MAX - 1, u32::MAX - 2, 42], 8)[..6], [42, 3, 3, 8, 3, 8]);
    assert_eq!(one("", body, &[u32::MAX - 1, u32::MAX - 2, 42], 8)[7], 77);
}

#[test]
fn structs_lie_in_memory_as_wgsl_says() {
    let text = "
struct Inner { a: u32, b: vec3<u32> }
struct Outer { n: u32, inner: array<Inner, 2>, @size(32) wide: vec2<u32>, @align(16) last: u32 }
@group(0) @binding(2) var<storage, read> threes: array<vec3<u32>>;
@group(1) @binding(0) var<uniform> outer: Outer;
@group(0) @binding(5) var<storage, read_write> written: Outer;
@group(0) @binding(7) var<storage, read_write> output: array<u32>;
@compute @workgroup_size(1)
fn main() {
    output[0] = outer.n; output[1] = outer.inner[1].a; output[2] = outer.inner[1].b.z;
    output[3] = outer.wide.y; output[4] = outer.last; output[5] = threes[1].z; output[6] = arrayLength(&threes);
    written = outer;
    written.inner[0] = Inner(5u, threes[0]);
}";
    let kernel = kernel(text);
    let shape: Vec<_> = kernel.parameters.iter().map(|p| (p.group, p.binding, p.kind, p.writable)).collect();
    // Outer: n 0, inner 16..80, wide 80..112, last 112, 128 bytes.
    let sized = ParameterKind::Sized { bytes: 128 };
    let elements = |stride| ParameterKind::Elements { stride };
    let want =
        [(0, 2, elements(16), false), (0, 5, sized, true), (0, 7, elements(4), true), (1, 0, sized, false)];
    assert_eq!(shape, want);
    let outer: Vec<u32> = (0..32).collect();
    let threes: Vec<u32> = (100..111).collect();
    let (mut written, mut output) = (vec![0; 32], vec![0; 7]);
    let mut buffers = [
        Buffer::Read(&threes),
        Buffer::Write(&mut written),
        Buffer::Write(&mut output),
        Buffer::Read(&outer),
    ];
    let host = host(&kernel, Checks { undefined: true });
    // Two elements of 16 bytes and 12 more do not make three.
    host.run([1; 3], &mut buffers).unwrap();
    assert_eq!(output, [0, 12, 18, 21, 28, 106, 2]);
    assert_eq!((written[28], written[4], &written[8..11]), (28, 5, &[100, 101, 102][..]));
}

#[test]
fn invocations_know_their_place() {
    let text = format!(
        "{BUFFERS}
struct Place {{ @builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32> }}
@compute @workgroup_size(4, 3, 2)
fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(local_invocation_id) local: vec3<u32>,
        @builtin(local_invocation_index) index: u32, place: Place) {{
    let size = vec3<u32>(4u, 3u, 2u) * place.groups;
    let number = id.x + size.x * (id.y + size.y * id.z);
    let again = place.group * vec3<u32>(4u, 3u, 2u) + local;
    output[number] = index + 100u * u32(all(again == id)) + input[0];
}}"
    );
    let have = run(&text, &[1000], 24 * 8, [2, 2, 2]);
    for (number, word) in have.into_iter().enumerate() {
        let [x, y, z] = [number % 8, number / 8 % 6, number / 48];
        assert_eq!(word as usize, 1100 + x % 4 + 4 * (y % 3) + 12 * (z % 2), "{x} {y} {z}");
    }
}

/// Two barriers a round, memory shared by a function, and zeros at the beginning of every workgroup.
#[test]
fn workgroups_share_memory_between_barriers() {
    let text = format!(
        "{BUFFERS}
struct Shared {{ words: array<u32, 64>, mark: bool }}
var<workgroup> all_of: Shared;
var<workgroup> start: u32;
fn rotate(index: u32) {{
    let next = all_of.words[(index + 1u) % 64u];
    workgroupBarrier();
    all_of.words[index] = next;
    workgroupBarrier();
}}
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) index: u32) {{
    let found = all_of.words[index] + start + u32(all_of.mark);
    workgroupBarrier();
    if (index == 63u) {{ start = group.x + 3u; all_of.mark = true; }}
    all_of.words[index] = index * index + found;
    workgroupBarrier();
    let rounds = workgroupUniformLoad(&start);
    for (var i = 0u; i < rounds; i++) {{ rotate(index); }}
    storageBarrier();
    output[group.x * 64u + index] = all_of.words[index] + input[0];
}}"
    );
    let have = run(&text, &[9], 64 * 5, [5, 1, 1]);
    for (i, word) in have.into_iter().enumerate() {
        let (group, index) = (i / 64, i % 64);
        let from = (index + group + 3) % 64;
        assert_eq!(word as usize, from * from + 9, "{group} {index}");
    }
}

#[test]
fn threads_that_part_at_barriers_are_found() {
    let text = format!(
        "{BUFFERS}
@compute @workgroup_size(8)
fn main(@builtin(local_invocation_index) index: u32) {{
    if (index == input[0]) {{ return; }}
    workgroupBarrier();
    if (index > input[1]) {{ workgroupBarrier(); }} else {{ storageBarrier(); }}
    output[index] = index;
}}"
    );
    // naga rejects such control flow as not uniform, so its check is switched off.
    let module = naga::front::wgsl::parse_str(&text).unwrap();
    let flags = naga::valid::ValidationFlags::all() & !naga::valid::ValidationFlags::CONTROL_FLOW_UNIFORMITY;
    let info =
        naga::valid::Validator::new(flags, naga::valid::Capabilities::all()).validate(&module).unwrap();
    let kernel = translate(&module, &info, "main", Default::default()).unwrap();
    let host = host(&kernel, Checks::default());
    let mut output = [0; 8];
    let mut with = |input: [u32; 2]| {
        host.run([1; 3], &mut [Buffer::Read(&input), Buffer::Write(&mut output)]).map_err(|e| e.to_string())
    };
    assert_eq!(with([9, 9]), Ok(()));
    assert!(with([3, 9]).unwrap_err().contains("ended while others wait"));
    assert!(with([9, 3]).unwrap_err().contains("different barriers"));
}

#[test]
fn buffers_have_to_fit() {
    let text = format!("{BUFFERS}@compute @workgroup_size(1)\nfn main() {{ output[0] = input[0]; }}");
    let host = host(&kernel(&text), Checks::default());
    let mut word = [1];
    let wrong = |result: Result<(), HostError>| match result {
        Err(HostError::Arguments { reason, .. }) => reason,
        other => panic!("{other:?}"),
    };
    assert!(wrong(host.run([1; 3], &mut [Buffer::Read(&[1])])).contains("1 buffers for 2"));
    assert!(wrong(host.run([1; 3], &mut [Buffer::Read(&[1]), Buffer::Read(&[1])])).contains("is written"));
    assert!(
        wrong(host.run([1; 3], &mut [Buffer::Read(&[]), Buffer::Write(&mut word)])).contains("no element")
    );
}

#[test]
fn entry_points_are_found_by_name() {
    let text = "@compute @workgroup_size(1) fn first() {} @compute @workgroup_size(2) fn second() {}";
    let module = naga::front::wgsl::parse_str(text).unwrap();
    let mut validator = naga::valid::Validator::new(Default::default(), naga::valid::Capabilities::empty());
    let info = validator.validate(&module).unwrap();
    assert_eq!(translate(&module, &info, "second", Default::default()).unwrap().block, [2, 1, 1]);
    let error = translate(&module, &info, "third", Default::default()).unwrap_err();
    assert_eq!(error, TranslateError::NoEntryPoint { entry: "third".into() });
}
