//! A store that does nothing, and tells what it was asked.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use forebay_gateway::store::{
    BucketFacts, Checksum, Condition, Draft, Entry, Facts, Lent, ListAsk, ListPage, Listed, Meta, Opened,
    PartFacts, Store, StoreError, StoreResult, Swept, UploadFacts, UploadsAsk, UploadsPage,
};

/// What a store was asked, with the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    Look,
    Bucket,
    Read(String),
    Removed(String),
    Described(String),
    Listed,
    Upload(String),
    /// Its bytes, and the checksum that they are published with.
    Written(String, Vec<u8>, Option<Checksum>),
    Finished(String, Vec<u32>),
}

/// The calls since they were taken.
#[derive(Default)]
pub struct Calls(Mutex<Vec<Call>>);

impl Calls {
    fn add(&self, call: Call) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(call);
    }

    pub fn take(&self) -> Vec<Call> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[derive(Clone)]
pub struct Told(pub Arc<Calls>);

/// Keys are refused as the store over a directory does.
fn check(key: &str) -> StoreResult<()> {
    if !key.contains('\0') && !key.is_empty() { Ok(()) } else { Err(StoreError::Key("no key")) }
}

fn check_upload(key: &str, id: &str) -> StoreResult<()> {
    check(key)?;
    if id == "id" { Ok(()) } else { Err(StoreError::NoUpload) }
}

fn facts(len: u64) -> Facts {
    Facts { len, modified: UNIX_EPOCH + Duration::from_secs(1), etag: "e-1".into(), meta: Meta::default() }
}

fn upload(key: &str) -> UploadFacts {
    UploadFacts { key: key.to_owned(), id: "id".to_owned(), begun: UNIX_EPOCH, meta: Meta::default() }
}

impl Told {
    fn told<T>(&self, call: Call, answer: T) -> StoreResult<T> {
        self.0.add(call);
        Ok(answer)
    }
}

struct Telling {
    calls: Arc<Calls>,
    key: String,
    bytes: Mutex<Vec<u8>>,
}

impl Draft for Telling {
    fn write_at(&self, bytes: &[u8], offset: u64) -> StoreResult<()> {
        let mut all = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        assert!(all.len() as u64 == offset, "bytes are written in their order");
        all.extend_from_slice(bytes);
        Ok(())
    }

    fn copy_from(&self, _: &File, _: u64, len: u64, _: u64) -> StoreResult<()> {
        assert!(len == 0, "the store's objects are empty");
        Ok(())
    }

    fn publish(self: Box<Self>, len: u64, meta: Meta, _: &Condition) -> StoreResult<Facts> {
        let bytes = self.bytes.into_inner().unwrap_or_else(PoisonError::into_inner);
        assert!(bytes.len() as u64 == len);
        self.calls.add(Call::Written(self.key, bytes, meta.checksum.clone()));
        Ok(Facts { meta, ..facts(len) })
    }
}

impl Store for Told {
    fn look(&self) -> StoreResult<()> {
        self.told(Call::Look, ())
    }

    fn buckets(&self) -> StoreResult<Vec<BucketFacts>> {
        self.told(Call::Bucket, Vec::new())
    }

    fn bucket(&self, bucket: &str) -> StoreResult<BucketFacts> {
        self.told(Call::Bucket, BucketFacts { name: bucket.to_owned(), created: UNIX_EPOCH })
    }

    fn make_bucket(&self, _: &str) -> StoreResult<()> {
        self.told(Call::Bucket, ())
    }

    fn remove_bucket(&self, _: &str) -> StoreResult<()> {
        self.told(Call::Bucket, ())
    }

    fn open(&self, _: &str, key: &str) -> StoreResult<Opened> {
        check(key)?;
        self.0.add(Call::Read(key.to_owned()));
        let file = File::open("/dev/null").map_err(|_| StoreError::Conflict)?;
        Ok(Opened { file, facts: facts(0) })
    }

    fn lend(&self, _: &str, key: &str) -> StoreResult<Lent> {
        check(key)?;
        self.told(Call::Read(key.to_owned()), Lent::Kept("there is no file"))
    }

    fn facts(&self, _: &str, key: &str) -> StoreResult<Facts> {
        check(key)?;
        self.told(Call::Read(key.to_owned()), facts(0))
    }

    fn begin(&self, _: &str, key: &str, _: Option<u64>) -> StoreResult<Box<dyn Draft>> {
        check(key)?;
        Ok(Box::new(Telling { calls: Arc::clone(&self.0), key: key.to_owned(), bytes: Mutex::default() }))
    }

    fn describe(
        &self,
        _: &str,
        key: &str,
        _: Option<&str>,
        change: &dyn Fn(&mut Meta),
    ) -> StoreResult<Facts> {
        check(key)?;
        let mut meta = Meta::default();
        change(&mut meta);
        self.told(Call::Described(key.to_owned()), Facts { meta, ..facts(0) })
    }

    fn remove(&self, _: &str, key: &str, _: &Condition) -> StoreResult<()> {
        check(key)?;
        self.told(Call::Removed(key.to_owned()), ())
    }

    fn list(&self, _: &str, ask: &ListAsk) -> StoreResult<ListPage> {
        assert!((1..=1000).contains(&ask.max));
        let object = |key| Listed { key, len: 1, modified: UNIX_EPOCH, etag: "e-1".into() };
        let key = format!("{}<&\u{7f}\u{fffe}", ask.prefix);
        let entries = vec![Entry::Object(object(key.clone())), Entry::Prefix("é/".into())];
        self.told(Call::Listed, ListPage { entries, next: Some(key) })
    }

    fn begin_upload(&self, _: &str, key: &str, _: Meta) -> StoreResult<String> {
        check(key)?;
        self.told(Call::Upload(key.to_owned()), "id".to_owned())
    }

    fn upload(&self, _: &str, key: &str, id: &str) -> StoreResult<UploadFacts> {
        check_upload(key, id)?;
        self.told(Call::Upload(key.to_owned()), upload(key))
    }

    fn begin_part(
        &self,
        bucket: &str,
        key: &str,
        id: &str,
        number: u32,
        len: Option<u64>,
    ) -> StoreResult<Box<dyn Draft>> {
        check_upload(key, id)?;
        assert!((1..=10_000).contains(&number));
        self.begin(bucket, key, len)
    }

    fn parts(&self, _: &str, key: &str, id: &str, behind: u32, max: usize) -> StoreResult<Vec<PartFacts>> {
        check_upload(key, id)?;
        let parts = (1..=2).filter(|number| *number > behind).take(max);
        self.told(
            Call::Upload(key.to_owned()),
            parts.map(|number| PartFacts { number, facts: facts(7) }).collect(),
        )
    }

    fn finish_upload(
        &self,
        _: &str,
        key: &str,
        id: &str,
        parts: &[(u32, String)],
        _: Option<Checksum>,
        _: &Condition,
    ) -> StoreResult<Facts> {
        check_upload(key, id)?;
        let numbers: Vec<u32> = parts.iter().map(|(number, _)| *number).collect();
        assert!(!numbers.is_empty() && numbers.iter().all(|number| (1..=10_000).contains(number)));
        self.told(Call::Finished(key.to_owned(), numbers), facts(14))
    }

    fn abort_upload(&self, _: &str, key: &str, id: &str) -> StoreResult<()> {
        check_upload(key, id)?;
        self.told(Call::Removed(key.to_owned()), ())
    }

    fn uploads(&self, _: &str, ask: &UploadsAsk) -> StoreResult<UploadsPage> {
        assert!(ask.max <= 1000);
        let uploads = vec![upload(&ask.prefix)];
        self.told(Call::Listed, UploadsPage { uploads, prefixes: vec!["é/".into()], next: None })
    }

    fn sweep(&self, _: Duration) -> StoreResult<Swept> {
        Ok(Swept::default())
    }
}
