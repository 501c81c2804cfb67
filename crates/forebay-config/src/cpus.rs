//! How many CPUs there are to run on, which may change at any time.

use std::path::Path;

use crate::files::read_kernel_text;

/// CPUs that the calling thread may use now: its affinity mask and its cgroup's quota. Costs some ten system calls.
pub fn cpus_now() -> usize {
    let quota = quota(Path::new("/")).unwrap_or(usize::MAX);
    of_thread().min(quota).max(1)
}

/// Whether the process that started this one may run on no other CPUs: then those of its other children are the same.
pub fn are_shared() -> bool {
    // SAFETY: asks for a number.
    of_process(unsafe { libc::getppid() }) <= of_process(std::process::id() as libc::pid_t)
}

fn of_thread() -> usize {
    of_process(0)
}

/// Of a process's first thread; 0 is the calling thread. As many as there can be where that cannot be seen.
fn of_process(process: libc::pid_t) -> usize {
    // SAFETY: a zeroed CPU set is the empty set; the call is given its size.
    unsafe {
        let mut allowed: libc::cpu_set_t = std::mem::zeroed();
        let asked = libc::sched_getaffinity(process, size_of::<libc::cpu_set_t>(), &raw mut allowed);
        if asked == 0 { libc::CPU_COUNT(&allowed) as usize } else { usize::MAX }
    }
}

/// Whole CPUs that the quota allows, the least of the cgroup's own and of those above it.
fn quota(root: &Path) -> Option<usize> {
    let own = read_kernel_text(root.join("proc/self/cgroup")).ok()?;
    let groups = own.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, group) = (parts.next()?, Path::new(parts.next()?).strip_prefix("/").ok()?);
        let mount = root.join("sys/fs/cgroup");
        match controllers {
            "" => Some((mount, group)),
            _ if controllers.split(',').any(|name| name == "cpu") => Some((mount.join("cpu"), group)),
            _ => None,
        }
    });
    groups.filter_map(|(mount, group)| group.ancestors().filter_map(|at| limit(&mount.join(at))).min()).min()
}

fn limit(group: &Path) -> Option<usize> {
    let number = |name| read_kernel_text(group.join(name)).ok()?.trim().parse::<usize>().ok();
    let (quota, period) = match read_kernel_text(group.join("cpu.max")) {
        Ok(text) => {
            text.trim().split_once(' ').and_then(|(a, b)| Some((a.parse().ok()?, b.parse().ok()?)))?
        }
        Err(_) => (number("cpu.cfs_quota_us")?, number("cpu.cfs_period_us")?),
    };
    Some(usize::checked_div(quota, period)?.max(1))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_least_quota_counts() {
        let root = std::env::temp_dir().join(format!("forebay-cpus-{}", std::process::id()));
        let write = |path: &str, text: &str| {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), text).unwrap();
        };
        assert_eq!(quota(&root), None);
        write("proc/self/cgroup", "0::/outer/inner\n");
        write("sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n");
        assert_eq!(quota(&root), None);
        for (text, cpus) in [("350000 100000\n", 3), ("50000 100000\n", 1), ("800000 100000\n", 8)] {
            write("sys/fs/cgroup/outer/inner/cpu.max", text);
            assert_eq!(quota(&root), Some(cpus), "{text}");
        }
        write("sys/fs/cgroup/outer/cpu.max", "200000 100000\n");
        assert_eq!(quota(&root), Some(2));
        write("proc/self/cgroup", "9:memory:/outer\n1:cpu,cpuacct:/old\n");
        write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "400000\n");
        write("sys/fs/cgroup/cpu/old/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota(&root), Some(4));
        write("sys/fs/cgroup/cpu/old/cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota(&root), None);
        fs::remove_dir_all(&root).unwrap();
        assert!((1..=of_thread()).contains(&cpus_now()));
    }
}
