//! The kernels as the driver takes them: machine code for the generations of GPUs that exist, and PTX for all others,
//! which the driver compiles (that takes a tenth of a second or more, unless it has done so before).

use std::ffi::c_void;

use super::driver::CudaDriver;
use super::error::CudaFailure;
use super::sys::Handle;

/// Built from `kernels/forebay.cu` by `kernels/build.sh`; ends with a zero, as the driver wants a text.
const PTX: &str = concat!(include_str!("../../kernels/forebay.ptx"), "\0");

/// Machine code, aligned as the driver may read it.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

/// Code for one capability, which runs on later ones with the same first number.
struct Cubin {
    capability: (i32, i32),
    code: &'static Aligned<[u8]>,
}

macro_rules! cubin {
    ($major:literal, $minor:literal, $file:literal) => {
        Cubin {
            capability: ($major, $minor),
            code: &Aligned(*include_bytes!(concat!("../../kernels/forebay.", $file, ".cubin"))),
        }
    };
}

/// Built from the PTX by `kernels/cubins.sh`.
static CUBINS: [Cubin; 5] = [
    cubin!(7, 5, "sm_75"),
    cubin!(8, 0, "sm_80"),
    cubin!(9, 0, "sm_90"),
    cubin!(10, 0, "sm_100"),
    cubin!(12, 0, "sm_120"),
];

/// The machine code for a GPU, if there is any.
fn cubin((major, minor): (i32, i32)) -> Option<&'static Cubin> {
    CUBINS.iter().find(|cubin| cubin.capability.0 == major && cubin.capability.1 <= minor)
}

/// Loads the kernels into the current context: machine code where there is some and the driver takes it (one of
/// another generation of CUDA may not), else PTX.
pub(super) fn load(driver: &CudaDriver, capability: (i32, i32)) -> Result<Handle, CudaFailure> {
    let load = |image: *const c_void| {
        let mut module = 0;
        // SAFETY: `module` is a valid place; the image is a whole ELF file, or a text that ends with a zero.
        unsafe { driver.symbols.cuModuleLoadData(&raw mut module, image) }.map(|()| module)
    };
    if let Some(cubin) = cubin(capability)
        && let Ok(module) = load(cubin.code.0.as_ptr().cast())
    {
        return Ok(module);
    }
    load(PTX.as_ptr().cast())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Whether the PTX and all machine code have a kernel of this name.
    pub(in crate::cuda) fn is_everywhere(name: &str) -> bool {
        let section = format!(".text.{name}\0");
        let has = |cubin: &Cubin| cubin.code.0.windows(section.len()).any(|at| at == section.as_bytes());
        PTX.contains(&format!(".visible .entry {name}(")) && CUBINS.iter().all(has)
    }

    #[test]
    fn the_ptx_is_one_that_old_drivers_take() {
        let word = |name: &str| {
            let line = PTX.lines().find(|line| line.starts_with(name)).expect("the directive is there");
            line[name.len()..].trim().to_owned()
        };
        let version: f32 = word(".version").parse().expect("a number");
        assert!(version <= 7.0, "{version}");
        assert_eq!(word(".target"), "sm_70");
        assert_eq!(word(".address_size"), "64");
        assert!(
            !PTX.contains("ld.global.nc"),
            "host memory is rewritten: no load may go through the read-only cache"
        );
        assert_eq!(PTX.find('\0'), Some(PTX.len() - 1), "a text for C");
    }

    #[test]
    fn machine_code_is_for_its_generation() {
        let found = |major, minor| cubin((major, minor)).map(|cubin| cubin.capability);
        assert_eq!(found(7, 0), None);
        assert_eq!(found(7, 5), Some((7, 5)));
        assert_eq!(found(8, 9), Some((8, 0)));
        assert_eq!(found(9, 0), Some((9, 0)));
        assert_eq!(found(10, 3), Some((10, 0)));
        assert_eq!(found(11, 0), None);
        assert_eq!(found(12, 1), Some((12, 0)));
        for cubin in &CUBINS {
            let code = &cubin.code.0;
            assert!(code.as_ptr().addr().is_multiple_of(64));
            assert_eq!(code[..4], *b"\x7fELF");
            // EM_CUDA, and the capability in the flags.
            assert_eq!(u16::from_le_bytes([code[18], code[19]]), 190);
            let flags = u32::from_le_bytes(code[48..52].try_into().expect("four bytes"));
            let number = (10 * cubin.capability.0 + cubin.capability.1) as u32;
            assert!(flags & 0xFF == number || flags >> 8 & 0xFF == number, "{flags:#x} of sm_{number}");
        }
    }
}
