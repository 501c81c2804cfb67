//! The memory of one caller: as much as its recorded transfers had in flight.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_engine::Memory;
use forebay_error::Result;
use forebay_gpu::{AllocationKind, Context, Device, DeviceRange, HostRange, Wait, fill_pattern};

use crate::plan::{Call, CallWay, Caller, Place};

const PAGE: u64 = 4096;
/// Filled at a time.
const FILL_BYTES: usize = 4 << 20;

/// Memory of a device; freed when dropped.
#[derive(Debug)]
pub(crate) struct DeviceBlock {
    device: Arc<dyn Device>,
    kind: AllocationKind,
    address: u64,
    len: usize,
}

impl DeviceBlock {
    pub(crate) fn new(device: &Arc<dyn Device>, kind: AllocationKind, len: usize) -> Result<Self> {
        let address = device.allocate_kind(kind, len).map_err(|error| {
            error
                .with("bytes", len)
                .hint("the program had this much in flight: replay where there is as much memory")
        })?;
        Ok(Self { device: device.clone(), kind, address, len })
    }

    pub(crate) const fn address(&self) -> u64 {
        self.address
    }

    /// Fills it with bytes that do not compress, and touches its pages by that.
    fn fill(&self) -> Result<()> {
        let mut part = vec![0; FILL_BYTES.min(self.len)];
        fill_pattern(&mut part, self.address, 0);
        let stream = self.device.stream(Context::PRIMARY)?;
        for at in (0..self.len).step_by(FILL_BYTES) {
            let len = part.len().min(self.len - at);
            // SAFETY: both ranges are ours, and stay until the stream is through.
            unsafe { stream.copy_in(self.address + at as u64, HostRange::new(part.as_ptr(), len)) }?;
        }
        stream.synchronize(Wait::Block)
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this kind and length; callers wait for their transfers before they drop it.
        unsafe { self.device.free_kind(self.kind, DeviceRange::new(self.address, self.len)) };
    }
}

/// A caller's memory in one place: some for the call that it waits for, and a ring for those in flight, which is given
/// back in the order in which it was taken.
#[derive(Debug)]
pub(crate) struct MemoryRing {
    pub(crate) place: Place,
    block: DeviceBlock,
    /// Where the ring begins.
    waited: u64,
    taken: VecDeque<(usize, Range<u64>)>,
}

impl MemoryRing {
    /// Memory for all that the caller had in flight in this place.
    pub(crate) fn new(place: Place, caller: &Caller, device: &Arc<dyn Device>) -> Result<Self> {
        let len = usize::try_from(needed(place, caller)).unwrap_or(usize::MAX);
        let block = DeviceBlock::new(device, AllocationKind::Device, len)?;
        block.fill()?;
        Ok(Self { place, block, waited: waited(place, caller), taken: VecDeque::new() })
    }

    /// The address for a call that is waited for.
    pub(crate) fn here(&self, call: &Call) -> u64 {
        self.block.address + u64::from(call.in_page)
    }

    /// Memory for calls of a step: the address of each. `None`: earlier ones have to be given back first.
    pub(crate) fn take(&mut self, step: usize, calls: &[&Call]) -> Option<Vec<u64>> {
        let len = calls.iter().map(|call| room(call)).sum();
        let start = self.find(len)?;
        self.taken.push_back((step, start..start + len));
        let mut at = self.block.address + start;
        let place = |call: &&Call| {
            let address = at + u64::from(call.in_page);
            at += room(call);
            address
        };
        Some(calls.iter().map(place).collect())
    }

    fn find(&self, len: u64) -> Option<u64> {
        let all = self.block.len as u64;
        let (Some((_, first)), Some((_, last))) = (self.taken.front(), self.taken.back()) else {
            return (len <= all - self.waited).then_some(self.waited);
        };
        let (head, tail) = (last.end, first.start);
        if head <= tail {
            return (tail - head >= len).then_some(head);
        }
        if all - head >= len { Some(head) } else { (tail - self.waited >= len).then_some(self.waited) }
    }

    /// The memory of all steps before this one is free.
    pub(crate) fn give_back(&mut self, before: usize) {
        while self.taken.front().is_some_and(|(step, _)| *step < before) {
            self.taken.pop_front();
        }
    }

    pub(crate) fn memory(&self, address: u64) -> Memory {
        Memory::new(self.block.device.clone(), address)
    }
}

fn room(call: &Call) -> u64 {
    (u64::from(call.in_page) + call.len.max(1)).next_multiple_of(PAGE)
}

/// The longest call in a place that was waited for.
fn waited(place: Place, caller: &Caller) -> u64 {
    let waited = caller.calls.iter().filter(|call| call.way == CallWay::Waited && call.place == place);
    waited.map(room).max().unwrap_or(0)
}

/// The bytes that a caller needs in a place: the most that it had in flight, and as much again as its longest step, which
/// finds the ring's end in its way.
pub(crate) fn needed(place: Place, caller: &Caller) -> u64 {
    let (mut flying, mut now, mut most, mut longest) = (VecDeque::new(), 0_u128, 0, 0);
    for step in &caller.steps {
        let calls = &caller.calls[step.clone()];
        let (start, end) = (calls[0].start, calls.iter().map(Call::end).max().unwrap_or(0));
        while let Some((until, len)) = flying.front().copied()
            && until <= start
        {
            flying.pop_front();
            now -= len;
        }
        let in_flight = calls.iter().filter(|call| call.place == place && call.way != CallWay::Waited);
        let len: u128 = in_flight.map(|call| u128::from(room(call))).sum();
        flying.push_back((end, len));
        now += len;
        most = u128::max(most, now);
        longest = u128::max(longest, len);
    }
    let ring = if most == longest { longest } else { most + longest };
    u64::try_from(ring).unwrap_or(u64::MAX).saturating_add(waited(place, caller))
}
