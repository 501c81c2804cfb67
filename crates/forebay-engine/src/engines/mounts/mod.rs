//! Files on mounts of the kernel's NFS client whose server this process reaches by itself, beside the kernel: found by [`find`], read over
//! TCP into a lane's memory by [`read`]; the engine `rdma` has servers place their bytes.

pub(crate) mod find;
pub(crate) mod read;
pub(crate) mod task_thread;
