"""BLAKE3 with the values inside its tree, Merkle trees of RFC 6962, and Ed25519 verification.

Written from the BLAKE3 paper (sections 2.1 to 2.5), RFC 6962 (section 2.1) and RFC 8032 (section 5.1, and the Python of its section 6), with nothing but
Python's standard library. run_format.py reads runs with it.
"""

import hashlib

# --- BLAKE3 ---

IV = (0x6A09E667, 0xBB67AE85, 0x3C6EF372, 0xA54FF53A, 0x510E527F, 0x9B05688C, 0x1F83D9AB, 0x5BE0CD19)
CHUNK_START, CHUNK_END, PARENT, ROOT, KEYED, DERIVE_KEY_CONTEXT, DERIVE_KEY_MATERIAL = 1, 2, 4, 8, 16, 32, 64
CHUNK = 1024
PERMUTATION = (2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8)


def _schedule():
    """The places of the message words that each of the seven rounds takes, in order."""
    rounds = [tuple(range(16))]
    while len(rounds) < 7:
        rounds.append(tuple(rounds[-1][place] for place in PERMUTATION))
    return rounds


SCHEDULE = _schedule()
# The four columns, then the four diagonals.
QUARTERS = ((0, 4, 8, 12), (1, 5, 9, 13), (2, 6, 10, 14), (3, 7, 11, 15),
            (0, 5, 10, 15), (1, 6, 11, 12), (2, 7, 8, 13), (3, 4, 9, 14))  # fmt: skip


def _compress(chaining, words, counter, length, flags):
    """The first eight words of the compression function's output."""
    mask = 0xFFFFFFFF
    v = [*chaining, *IV[:4], counter & mask, counter >> 32, length, flags]
    for order in SCHEDULE:
        place = 0
        for a, b, c, d in QUARTERS:
            va, vb, vc, vd = v[a], v[b], v[c], v[d]
            va = (va + vb + words[order[place]]) & mask
            vd ^= va
            vd = (vd >> 16 | vd << 16) & mask
            vc = (vc + vd) & mask
            vb ^= vc
            vb = (vb >> 12 | vb << 20) & mask
            va = (va + vb + words[order[place + 1]]) & mask
            vd ^= va
            vd = (vd >> 8 | vd << 24) & mask
            vc = (vc + vd) & mask
            vb ^= vc
            v[a], v[b], v[c], v[d] = va, (vb >> 7 | vb << 25) & mask, vc, vd
            place += 2
    return tuple(v[i] ^ v[i + 8] for i in range(8))


def _words(data):
    return tuple(int.from_bytes(data[i : i + 4], "little") for i in range(0, len(data), 4))


def _bytes(words):
    return b"".join(word.to_bytes(4, "little") for word in words)


def _half(count):
    """The greatest power of two below `count`."""
    return 1 << ((count - 1).bit_length() - 1)


# A node is the input of its last compression, because a root's has one flag more: (chaining value, words, counter, length, flags).


def _chunk(data, counter, key, flags):
    chaining = key
    starts = range(0, max(len(data), 1), 64)
    for start in starts:
        block = data[start : start + 64]
        kind = flags | (CHUNK_START if start == 0 else 0) | (CHUNK_END if start == starts[-1] else 0)
        node = (chaining, _words(block.ljust(64, b"\0")), counter, len(block), kind)
        if start != starts[-1]:
            chaining = _compress(*node)
    return node


def _parent(left, right, key, flags):
    return (key, left + right, 0, 64, flags | PARENT)


def _subtree(data, counter, key, flags):
    chunks = -(-len(data) // CHUNK)
    if chunks <= 1:
        return _chunk(data, counter, key, flags)
    half = _half(chunks)
    left = _subtree(data[: half * CHUNK], counter, key, flags)
    right = _subtree(data[half * CHUNK :], counter + half, key, flags)
    return _parent(_compress(*left), _compress(*right), key, flags)


def _root(node):
    chaining, words, _, length, flags = node
    return _bytes(_compress(chaining, words, 0, length, flags | ROOT))


def blake3(data):
    """The 32 bytes of BLAKE3 of `data`."""
    return _root(_subtree(data, 0, IV, 0))


def group_values(data, group):
    """The values of the tree over `data` at groups of `group` bytes (a power of two of at least 1024): the chaining value of each group's
    subtree, or the root alone if there is one group."""
    if len(data) <= group:
        return [blake3(data)]
    starts = range(0, len(data), group)
    return [_bytes(_compress(*_subtree(data[at : at + group], at // CHUNK, IV, 0))) for at in starts]


def root_of_groups(values):
    """The BLAKE3 root that follows from `group_values`."""

    def node(values):
        return _parent(chaining(values[: _half(len(values))]), chaining(values[_half(len(values)) :]), IV, 0)

    def chaining(values):
        return _words(values[0]) if len(values) == 1 else _compress(*node(values))

    return values[0] if len(values) == 1 else _root(node(values))


def slice_value(data, size, number, count):
    """The value of slice `number` of `count` slices of `size` bytes (a power of two of at least 1024): as in `group_values`."""
    return blake3(data) if count == 1 else _bytes(_compress(*_subtree(data, number * size // CHUNK, IV, 0)))


def root_of_some(count, known, hashes, node=None):
    """The root over `count` leaves, from the values of some (number to value) and the hashes of the greatest subtrees without any of them, from left to
    right. Without `node`, which joins two values, the tree is BLAKE3's."""
    hashes = list(hashes)

    def value(first, count, is_top):
        if not any(first <= number < first + count for number in known):
            return hashes.pop(0)
        if count == 1:
            return known[first]
        half = _half(count)
        left, right = value(first, half, False), value(first + half, count - half, False)
        if node:
            return node(left, right)
        parent = _parent(_words(left), _words(right), IV, 0)
        return _root(parent) if is_top else _bytes(_compress(*parent))

    root = value(0, count, True)
    if hashes or not known or not all(0 <= number < count for number in known):
        raise ValueError("a proof has too many hashes, or is of leaves that are not there")
    return root


_contexts = {}


def derive(context, material):
    """BLAKE3 in derive_key mode: 32 bytes for this context string."""
    if context not in _contexts:
        _contexts[context] = _words(_root(_subtree(context.encode(), 0, IV, DERIVE_KEY_CONTEXT)))
    return _root(_subtree(material, 0, _contexts[context], DERIVE_KEY_MATERIAL))


def keyed(key, data):
    """BLAKE3 in keyed_hash mode: 32 bytes for a key of 32 bytes."""
    return _root(_subtree(data, 0, _words(key), KEYED))


# --- Merkle trees of RFC 6962 ---


def merkle_leaf(leaf):
    return hashlib.sha256(b"\0" + leaf).digest()


def merkle_node(left, right):
    return hashlib.sha256(b"\1" + left + right).digest()


def merkle_root(leaves):
    """The root over the bytes of the leaves."""

    def root(hashes):
        if len(hashes) == 1:
            return hashes[0]
        half = _half(len(hashes))
        return merkle_node(root(hashes[:half]), root(hashes[half:]))

    return root([merkle_leaf(leaf) for leaf in leaves]) if leaves else hashlib.sha256(b"").digest()


def merkle_root_from_proof(leaf, index, size, proof):
    """The root that an inclusion proof gives for leaf `index` of `size` (RFC 9162, section 2.1.3.2), or None if it has not the right length."""
    value, last, proof = merkle_leaf(leaf), size - 1, list(proof)
    while last > 0:
        if index % 2 == 1 or index < last:
            if not proof:
                return None
            sibling = proof.pop(0)
            value = merkle_node(sibling, value) if index % 2 == 1 else merkle_node(value, sibling)
        index, last = index // 2, last // 2
    return None if proof else value


# --- Ed25519 ---

P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P


def _add(a, b):
    """Points are (X, Y, Z, T) with x = X/Z, y = Y/Z and x y = T/Z."""
    e, f = (a[1] - a[0]) * (b[1] - b[0]) % P, (a[1] + a[0]) * (b[1] + b[0]) % P
    g, h = 2 * a[3] * b[3] * D % P, 2 * a[2] * b[2] % P
    e, f, g, h = f - e, h - g, h + g, f + e
    return (e * f % P, g * h % P, f * g % P, e * h % P)


def _multiply(scalar, point):
    product = (0, 1, 1, 0)
    while scalar:
        if scalar & 1:
            product = _add(product, point)
        point = _add(point, point)
        scalar >>= 1
    return product


def _point(data):
    """The point of 32 bytes, or None if they are none."""
    y = int.from_bytes(data, "little")
    sign, y = y >> 255, y & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if x * x % P != square:
        x = x * pow(2, (P - 1) // 4, P) % P
    if x * x % P != square or (x == 0 and sign):
        return None
    return ((x if x & 1 == sign else P - x), y, 1, ((x if x & 1 == sign else P - x) * y) % P)


BASE = _point((4 * pow(5, -1, P) % P).to_bytes(32, "little"))


def ed25519_verifies(public, message, signature):
    """Whether `signature` (64 bytes) is one of `message` by the key `public` (32 bytes)."""
    key, r, s = _point(public), _point(signature[:32]), int.from_bytes(signature[32:], "little")
    if len(signature) != 64 or key is None or r is None or s >= ORDER:
        return False
    h = int.from_bytes(hashlib.sha512(signature[:32] + public + message).digest(), "little") % ORDER
    a, b = _multiply(s, BASE), _add(r, _multiply(h, key))
    return (a[0] * b[2] - b[0] * a[2]) % P == 0 and (a[1] * b[2] - b[1] * a[2]) % P == 0
