//! The Murmur3 token of a partition key. Cassandra source: o.a.c.utils.MurmurHash.hash3_x64_128.

const C1: u64 = 0x87C3_7B91_1142_53D5;
const C2: u64 = 0x4CF5_AD43_2745_937F;

/// The token; what Cassandra stores in its place where it is the smallest number makes no difference to its top bits.
pub fn token(key: &[u8]) -> i64 {
    let (mut h1, mut h2) = (0_u64, 0_u64);
    let mut blocks = key.chunks_exact(16);
    for block in &mut blocks {
        h1 ^= first(little_endian(&block[..8]));
        h1 = h1.rotate_left(27).wrapping_add(h2).wrapping_mul(5).wrapping_add(0x52DC_E729);
        h2 ^= second(little_endian(&block[8..]));
        h2 = h2.rotate_left(31).wrapping_add(h1).wrapping_mul(5).wrapping_add(0x3849_5AB5);
    }
    let tail = blocks.remainder();
    if tail.len() > 8 {
        h2 ^= second(signed_tail(&tail[8..]));
    }
    if !tail.is_empty() {
        h1 ^= first(signed_tail(&tail[..tail.len().min(8)]));
    }
    let length = key.len() as u64;
    h1 ^= length;
    h2 ^= length;
    h1 = h1.wrapping_add(h2);
    h2 = h2.wrapping_add(h1);
    mixed(h1).wrapping_add(mixed(h2)) as i64
}

fn first(block: u64) -> u64 {
    block.wrapping_mul(C1).rotate_left(31).wrapping_mul(C2)
}

fn second(block: u64) -> u64 {
    block.wrapping_mul(C2).rotate_left(33).wrapping_mul(C1)
}

fn little_endian(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Java's bytes are signed: a negative one changes all bits above it. This is Cassandra's Murmur3, and not the usual one.
fn signed_tail(bytes: &[u8]) -> u64 {
    bytes.iter().enumerate().fold(0, |value, (index, byte)| value ^ ((*byte as i8) as i64 as u64) << (8 * index))
}

fn mixed(mut value: u64) -> u64 {
    value = (value ^ value >> 33).wrapping_mul(0xFF51_AFD7_ED55_8CCD);
    value = (value ^ value >> 33).wrapping_mul(0xC4CE_B9FE_1A85_EC53);
    value ^ value >> 33
}
