//! What the server needs of the place where objects lie.
//!
//! Calls block: the server runs them on threads that may wait. A store acts for one account: its directory, its user.

mod error;
mod meta;

use std::fs::File;
use std::time::{Duration, SystemTime};

pub use error::{StoreError, StoreResult};
pub use meta::{Checksum, Meta};

/// Whether XML can say a text: it has no control characters but tabs and ends of lines, not even encoded.
pub fn is_sayable(text: &str) -> bool {
    text.bytes().all(|byte| byte >= b' ' || matches!(byte, b'\t' | b'\n' | b'\r'))
}

/// A bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BucketFacts {
    /// Its name.
    pub name: String,
    /// When its directory was made, or changed where the file system does not keep that.
    pub created: SystemTime,
}

/// The facts of an object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Bytes.
    pub len: u64,
    /// When it was written.
    pub modified: SystemTime,
    /// Without quotes. It changes with the object, is the same from each gateway, and has a `-` unless it is an MD5.
    pub etag: String,
    /// From the request that wrote it; empty for a file that another program wrote.
    pub meta: Meta,
}

/// An object that is open: whatever happens to its name, the bytes stay these.
#[derive(Debug)]
pub struct Opened {
    /// Open for reading.
    pub file: File,
    /// Of this file.
    pub facts: Facts,
}

/// An object's file for another process of this machine.
#[derive(Debug)]
pub enum Lent {
    /// Open for reading; no process can make a descriptor that writes of it.
    File(Box<Opened>),
    /// The descriptor stays here: why.
    Kept(&'static str),
}

/// What must hold at the moment when an object is published or removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Condition {
    /// Nothing.
    #[default]
    None,
    /// No object has the name.
    Absent,
    /// The object there has one of these ETags; `*`: any.
    Matches(Vec<String>),
    /// The object there, where there is one, has another ETag than this.
    Differs(String),
}

/// A draft that another process wrote.
pub enum TakenBack {
    /// Nobody else writes to it any more; its length.
    Whole(Box<dyn Draft>, u64),
    /// Another process has it open.
    Open(Box<dyn Draft>),
}

/// Length, blocks and time of a draft's file: they change when it is written.
pub type Progress = [u64; 3];

/// An object, or a part of one, that is being written. Dropped before it is published, it leaves nothing.
pub trait Draft: Send {
    /// Writes all the bytes, at an offset from the draft's first.
    fn write_at(&self, bytes: &[u8], offset: u64) -> StoreResult<()>;

    /// Copies a range of an open object to the offset, inside the file system where it can.
    fn copy_from(&self, source: &File, from: u64, len: u64, offset: u64) -> StoreResult<()>;

    /// A second opening of the file, for another process of this machine that writes the bytes. `None`: the draft has no file of its own.
    fn hand_out(&mut self) -> StoreResult<Option<File>> {
        Ok(None)
    }

    /// How far another process is that writes it.
    fn progress(&self) -> Option<Progress> {
        None
    }

    /// Takes back a draft that was handed out, and returns its length. If that is not `len`, the caller refuses it.
    /// `copies`: also where another process has it open, by a copy.
    fn take_back(self: Box<Self>, _len: u64, _copies: bool) -> StoreResult<TakenBack> {
        Err(StoreError::Denied)
    }

    /// Gives the draft its name, in one step; durable before it returns unless the store's options leave that out. `len` is how many bytes
    /// were written: the draft has no others.
    fn publish(self: Box<Self>, len: u64, meta: Meta, condition: &Condition) -> StoreResult<Facts>;
}

/// What a listing asks for. Keys are compared by their bytes.
#[derive(Clone, Debug, Default)]
pub struct ListAsk {
    /// Keys begin with this.
    pub prefix: String,
    /// Keys with this behind the prefix are one entry up to it. S3's clients use `/`; others are allowed.
    pub delimiter: Option<String>,
    /// Keys and common prefixes behind this one.
    pub after: String,
    /// At most this number of entries.
    pub max: usize,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key.
    pub key: String,
    /// Bytes.
    pub len: u64,
    /// When it was written.
    pub modified: SystemTime,
    /// As in its [`Facts`].
    pub etag: String,
}

/// An entry of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An object.
    Object(Listed),
    /// A common prefix.
    Prefix(String),
}

/// A page of a listing, in the order of the keys' bytes.
#[derive(Clone, Debug, Default)]
pub struct ListPage {
    /// At most as many as were asked for.
    pub entries: Vec<Entry>,
    /// Where the next page goes on: what `after` of its ask is. `None`: there is no more.
    pub next: Option<String>,
}

/// An upload by parts that was begun.
#[derive(Clone, Debug)]
pub struct UploadFacts {
    /// The key that the object is to have.
    pub key: String,
    /// Its name.
    pub id: String,
    /// When it was begun.
    pub begun: SystemTime,
    /// What the object is to have.
    pub meta: Meta,
}

/// What a listing of uploads asks for. They are in the order of their keys, then of their ids: those of one key as they were begun.
#[derive(Clone, Debug, Default)]
pub struct UploadsAsk {
    /// Keys begin with this.
    pub prefix: String,
    /// Keys with this behind the prefix are one entry up to it.
    pub delimiter: Option<String>,
    /// Uploads of keys behind this one …
    pub after: String,
    /// … and of this very key those behind this id.
    pub after_id: Option<String>,
    /// At most this number of entries.
    pub max: usize,
}

/// A page of a listing of uploads.
#[derive(Clone, Debug, Default)]
pub struct UploadsPage {
    /// Uploads that no common prefix stands for.
    pub uploads: Vec<UploadFacts>,
    /// Common prefixes.
    pub prefixes: Vec<String>,
    /// `after` and `after_id` of the next page. `None`: there is no more.
    pub next: Option<(String, String)>,
}

/// A part that was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartFacts {
    /// From 1 to 10 000.
    pub number: u32,
    /// Its length, time, ETag; its checksum is in `meta`.
    pub facts: Facts,
}

/// What a sweep removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Uploads.
    pub uploads: usize,
    /// Temporary files of gateways that are gone.
    pub temporaries: usize,
    /// Records of objects that are gone.
    pub records: usize,
}

/// Where objects lie.
pub trait Store: Send + Sync {
    /// Fails where the file system is not there.
    fn look(&self) -> StoreResult<()>;
    /// All buckets of the account, in the order of their names.
    fn buckets(&self) -> StoreResult<Vec<BucketFacts>>;
    /// One bucket.
    fn bucket(&self, bucket: &str) -> StoreResult<BucketFacts>;
    /// Makes a bucket.
    fn make_bucket(&self, bucket: &str) -> StoreResult<()>;
    /// Removes an empty one.
    fn remove_bucket(&self, bucket: &str) -> StoreResult<()>;

    /// Opens an object for reading.
    fn open(&self, bucket: &str, key: &str) -> StoreResult<Opened>;
    /// Opens an object for another process of this machine, which gets the descriptor itself.
    fn lend(&self, bucket: &str, key: &str) -> StoreResult<Lent>;
    /// The facts of an object.
    fn facts(&self, bucket: &str, key: &str) -> StoreResult<Facts>;
    /// Begins to write an object of this length, where it is known.
    fn begin(&self, bucket: &str, key: &str, len: Option<u64>) -> StoreResult<Box<dyn Draft>>;
    /// Says other things of an object, where it has this ETag; its bytes and its ETag stay.
    fn describe(
        &self,
        bucket: &str,
        key: &str,
        etag: Option<&str>,
        change: &dyn Fn(&mut Meta),
    ) -> StoreResult<Facts>;
    /// Removes an object. One that is not there is removed already, unless the condition asks for it.
    fn remove(&self, bucket: &str, key: &str, condition: &Condition) -> StoreResult<()>;
    /// A page of a bucket's keys.
    fn list(&self, bucket: &str, ask: &ListAsk) -> StoreResult<ListPage>;

    /// Begins an upload by parts. Returns its name, known to every gateway.
    fn begin_upload(&self, bucket: &str, key: &str, meta: Meta) -> StoreResult<String>;
    /// The facts of an upload.
    fn upload(&self, bucket: &str, key: &str, id: &str) -> StoreResult<UploadFacts>;
    /// Begins to write a part; one of the same number is replaced when this one is published.
    fn begin_part(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        number: u32,
        len: Option<u64>,
    ) -> StoreResult<Box<dyn Draft>>;
    /// Parts that were written, behind a number, at most `max`, in the order of their numbers.
    fn parts(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        behind: u32,
        max: usize,
    ) -> StoreResult<Vec<PartFacts>>;
    /// Makes the object of these parts (number, ETag), which were asked for in this order. A second call for an upload that became the
    /// object that is there returns the same.
    fn finish_upload(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        parts: &[(u32, String)],
        checksum: Option<Checksum>,
        condition: &Condition,
    ) -> StoreResult<Facts>;
    /// Forgets an upload and its parts.
    fn abort_upload(&self, bucket: &str, key: &str, id: &str) -> StoreResult<()>;
    /// A page of the uploads of a bucket that were begun. No more of them than a page are held in memory.
    fn uploads(&self, bucket: &str, ask: &UploadsAsk) -> StoreResult<UploadsPage>;

    /// Removes from all buckets temporary files of gateways that are gone, and uploads and records that are older than `age` and that
    /// no object needs. It has the rights of the process, not of the account's user.
    fn sweep(&self, age: Duration) -> StoreResult<Swept>;
}
