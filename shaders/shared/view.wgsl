// The base element of a row in a strided [batch0, batch1, rows, K] view.
fn view_row(row: u32, dims: vec4<u32>, strides: vec4<u32>, offset: u32) -> u32 {
    let rows = max(dims.z, 1u);
    let second = max(dims.y, 1u);
    let r = row % rows;
    let b = row / rows;
    return offset + (b / second) * strides.x + (b % second) * strides.y + r * strides.z;
}
