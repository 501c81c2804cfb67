//! Messages as lists of bytes, written and read simply.

#[derive(Default)]
pub(crate) struct Out(pub(crate) Vec<u8>);

impl Out {
    pub(crate) fn word(mut self, value: u32) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn words(self, values: &[u32]) -> Self {
        values.iter().fold(self, |out, value| out.word(*value))
    }
    pub(crate) fn long(mut self, value: u64) -> Self {
        self.0.extend(value.to_be_bytes());
        self
    }
    pub(crate) fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        let mut out = self.word(bytes.len() as u32).raw(bytes);
        while !out.0.len().is_multiple_of(4) {
            out.0.push(0);
        }
        out
    }
}

/// The rest of a call. Reading beyond its end gives `None`: the call is answered with GARBAGE_ARGS.
pub(crate) struct In<'a>(pub(crate) &'a [u8]);

impl<'a> In<'a> {
    pub(crate) fn raw(&mut self, len: usize) -> Option<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(head)
    }
    pub(crate) fn word(&mut self) -> Option<u32> {
        Some(u32::from_be_bytes(self.raw(4)?.try_into().ok()?))
    }
    pub(crate) fn long(&mut self) -> Option<u64> {
        Some(u64::from_be_bytes(self.raw(8)?.try_into().ok()?))
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = self.word()? as usize;
        let padded = self.raw(len.div_ceil(4).checked_mul(4)?)?;
        // Pad is zero, as clients are to send it.
        padded[len..].iter().all(|byte| *byte == 0).then_some(&padded[..len])
    }
}
