//! Checksums where no kernel can be loaded.

use crate::common::{in_process, install_gpu, pattern};
use forebay_engine::{Checksum, Memory, Session};

const LEN: usize = 3 << 20;

#[test]
fn without_kernels_the_cpu_makes_them_of_copies_and_a_note_says_so() {
    // A context's kernels are loaded once for a process.
    in_process(&[], &[], || {
        install_gpu();
        let fake = fake_cuda::install().unwrap();
        fake.set_delay_us(0);
        // The driver takes neither form of the kernels.
        fake.fail_next("cuModuleLoadData", 222, 0, 0);
        let session = Session::with_config(forebay_config::Config::default()).unwrap();
        let (buffer, bytes) = (session.buffer(0, LEN).unwrap(), pattern(3, 0, LEN));
        assert!(fake.write(buffer.address(), &bytes));
        assert!(session.notes().is_empty());
        let cuts =
            [(0, LEN), (7, 1), (100, 0), (5000, 700_001), (1 << 20, 327_680), (3, 655_361), (LEN - 1, 1)];
        let ranges = cuts.map(|(skip, len)| {
            (Memory::new(session.device(0).unwrap(), buffer.address() + skip as u64), len)
        });
        let wanted = cuts.map(|(skip, len)| Checksum::of(&bytes[skip..skip + len]).crc());
        for _ in 0..2 {
            // SAFETY: the buffer lives through the call, and nobody writes it.
            assert_eq!(unsafe { session.checksums(&ranges) }.unwrap(), wanted);
        }
        assert_eq!(fake.calls("cuLaunchKernel"), 0);
        assert_eq!(fake.unpinned_copies(), 0);
        let notes = session.notes();
        assert_eq!(notes.len(), 1, "said once: {notes:?}");
        assert!(
            notes[0].text.starts_with("checksums of GPU memory are made on the CPU, of copies: "),
            "{notes:?}"
        );
        drop(buffer);
        drop(session);
        let leaks = fake.leaks();
        assert_eq!(leaks, fake_cuda::Leaks { contexts: leaks.contexts, ..fake_cuda::Leaks::default() });
    });
}
