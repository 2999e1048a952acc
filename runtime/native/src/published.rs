//! Which changes are published: the memory of `source_connector/events/mutation_cache.py`.
//!
//! An entry has no Python objects. In Python it has four, and the dictionary of 32,767 keys is looked up eight times.

use lru::LruCache;
use pyo3::prelude::*;

/// The digests of up to `max_capacity` keys. The key whose last use is the longest ago gives way.
#[pyclass(module = "cassandra_cdc_native")]
pub struct PublishedChanges {
    known: LruCache<Box<[u8]>, Known>,
    max_capacity: usize,
    max_digests: usize,
    expire_after_s: f64,
    evictions: u64,
}

/// When the entry expires, and its digests, oldest first, each after its length.
struct Known {
    until_s: f64,
    digests: Vec<u8>,
}

const SIZE: usize = size_of::<u32>();

#[pymethods]
impl PublishedChanges {
    #[new]
    fn new(max_capacity: usize, max_digests: usize, expire_after_s: f64) -> Self {
        let known = LruCache::unbounded();
        PublishedChanges { known, max_capacity, max_digests, expire_after_s, evictions: 0 }
    }

    #[getter]
    fn evictions(&self) -> u64 {
        self.evictions
    }

    fn __len__(&self) -> usize {
        self.known.len()
    }

    fn is_published(&mut self, key: &[u8], digest: &[u8], now_s: f64) -> bool {
        let Some(known) = self.known.get(key) else { return false };
        now_s < known.until_s && Digests(&known.digests).any(|each| each == digest)
    }

    fn remember(&mut self, key: &[u8], digest: &[u8], now_s: f64) {
        let until_s = now_s + self.expire_after_s;
        if let Some(known) = self.known.get_mut(key) {
            let before = if now_s < known.until_s { &known.digests[..] } else { &[] };
            known.digests = with_newest(before, digest, self.max_digests);
            known.until_s = until_s;
            return;
        }
        let digests = with_newest(&[], digest, self.max_digests);
        self.known.put(key.into(), Known { until_s, digests });
        if self.known.len() > self.max_capacity {
            self.known.pop_lru();
            self.evictions += 1;
        }
    }

    fn forget(&mut self, prefix: &[u8]) {
        let keys: Vec<Box<[u8]>> =
            self.known.iter().map(|(key, _)| key).filter(|key| key.starts_with(prefix)).cloned().collect();
        for key in keys {
            self.known.pop(&key);
        }
    }
}

/// The digests of an entry.
struct Digests<'a>(&'a [u8]);

impl<'a> Iterator for Digests<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (size, rest) = self.0.split_first_chunk::<SIZE>()?;
        let (digest, rest) = rest.split_at_checked(u32::from_ne_bytes(*size) as usize)?;
        self.0 = rest;
        Some(digest)
    }
}

/// The digests with this one as the newest; the oldest are left out if there are more than `most`.
fn with_newest(before: &[u8], digest: &[u8], most: usize) -> Vec<u8> {
    let kept: Vec<&[u8]> = Digests(before).filter(|each| *each != digest).collect();
    let first = (kept.len() + 1).saturating_sub(most.max(1));
    let mut out = Vec::with_capacity(SIZE + digest.len());
    for each in kept.into_iter().skip(first).chain([digest]) {
        out.extend_from_slice(&(each.len() as u32).to_ne_bytes());
        out.extend_from_slice(each);
    }
    out
}
