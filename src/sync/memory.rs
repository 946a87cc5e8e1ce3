//! Large zeroed arrays, handed out untouched: what nobody uses costs nothing.
//!
//! The larger ones come from the system itself, and go back to it. An allocator may keep what was freed. When a
//! scheduler grows after another one has gone, it then has to write zeroes over all of that before one call returns.
//!
//! A program that counts what the allocator hands out does not see arrays from the system. LeakSanitizer does not look
//! into them: it reports as a leak what only a pending timer leads to, in a scheduler that lives until the process
//! ends.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::Range;

/// Arrays of at least one large page come from the system, and lie on such pages, where it has them. So the addresses
/// of millions of timers fit into the processor's translation tables, also right after a sleep, when little of those
/// tables is left in its caches.
const LARGE_PAGE: usize = 2 << 20;
/// In an array of fewer bytes, a large page would be too much of the whole if only part of the page is wanted.
const LARGE_ARRAY: usize = 2 * LARGE_PAGE;
/// Where the system's pages are larger than this, each is touched several times.
const PAGE: usize = 4 << 10;
/// A multiple of the page size, on almost any machine.
const GRANULE: usize = 64 << 10;

/// True if the array comes from the system.
const fn is_mapped<T>(len: usize) -> bool {
    cfg!(all(target_os = "linux", not(miri)))
        && align_of::<T>() <= LARGE_PAGE
        && len.saturating_mul(size_of::<T>()) >= LARGE_PAGE
}

/// What the other arrays are aligned to: a cache line, or more if the items ask for it.
const fn alignment<T>() -> usize {
    if align_of::<T>() > 64 { align_of::<T>() } else { 64 }
}

/// What is asked for. From the allocator that is one alignment more than the items need: room to align them, and for
/// the base address in front of them. (If asked for the alignment, it would write zeroes over the whole array.)
fn layout<T>(len: usize) -> Layout {
    let bytes = len.checked_mul(size_of::<T>());
    let size = if is_mapped::<T>(len) {
        bytes.and_then(|bytes| bytes.checked_next_multiple_of(GRANULE))
    } else {
        bytes.and_then(|bytes| bytes.checked_add(alignment::<T>()))
    };
    size.and_then(|size| Layout::from_size_align(size, 16).ok())
        .expect("an array of timers fits into the address space")
}

/// Allocates `len` items of all-zero bytes.
///
/// # Safety
/// All-zero bytes must be a valid `T`.
pub(crate) unsafe fn allocate<T: Default>(len: usize) -> *mut T {
    let layout = layout::<T>(len);
    if is_mapped::<T>(len) {
        let items = pages::map(layout.size());
        if items.is_null() {
            handle_alloc_error(layout);
        }
        return items.cast();
    }
    // SAFETY: the size is at least the alignment, hence not zero.
    let base = unsafe { alloc_zeroed(layout) };
    if base.is_null() {
        handle_alloc_error(layout);
    }
    let gap = alignment::<T>() - base.addr() % alignment::<T>();
    // SAFETY: `gap` is at least 16 (`base` is 16-aligned) and at most the alignment, which `layout` has added: the
    // items and the pointer in front of them lie inside the allocation.
    unsafe {
        let items = base.add(gap);
        items.cast::<*mut u8>().sub(1).write(base);
        items.cast()
    }
}

/// Gives the memory back without dropping the items.
///
/// # Safety
/// `items` must come from `allocate::<T>(len)`, must not be used again, and must be freed once only.
pub(crate) unsafe fn free<T>(items: *mut T, len: usize) {
    let layout = layout::<T>(len);
    if is_mapped::<T>(len) {
        // SAFETY: `allocate` mapped it with this very length, and nobody uses it any more.
        unsafe { pages::unmap(items.cast(), layout.size()) };
        return;
    }
    // SAFETY: `allocate` wrote the base address in front of the items.
    let base = unsafe { items.cast::<*mut u8>().sub(1).read() };
    // SAFETY: `base` was allocated with this very layout.
    unsafe { dealloc(base, layout) };
}

/// Has the system put memory behind some of an array's items, before any thread has to wait for that. `touch` writes to
/// an item without changing it; other threads may use all of the items meanwhile. Of an item larger than a page, only
/// the first page is sure to have memory afterwards.
///
/// (Not `MADV_POPULATE_WRITE`: Linux would hold the lock of the whole address space meanwhile, and every thread of the
/// process that allocates would wait. A page that is touched holds up, since Linux 6.4, only threads that need the same
/// mapping.)
///
/// # Safety
/// `items` must come from `allocate::<T>(len)` and not be freed, and the range must lie within the array.
pub(crate) unsafe fn populate<T>(items: *mut T, len: usize, range: Range<usize>, touch: impl Fn(&T)) {
    let wanted = range.len() * size_of::<T>();
    if is_mapped::<T>(len) && (len * size_of::<T>() >= LARGE_ARRAY || wanted >= LARGE_PAGE) {
        // Only large pages that begin within the range, so that none is asked for twice while an array is populated
        // from its first item on; and that end within the array, so that all of their memory is the array's.
        let whole = (len * size_of::<T>()) & !(LARGE_PAGE - 1);
        let page_from = |index: usize| (index * size_of::<T>()).next_multiple_of(LARGE_PAGE).min(whole);
        let (start, end) = (page_from(range.start), page_from(range.end));
        if start < end {
            // SAFETY: as the caller promises; and `whole` is at most the array's size.
            unsafe { pages::prefer_large(items.cast::<u8>().add(start), end - start) };
        }
    }
    let last = range.clone().last();
    for index in range.step_by((PAGE / size_of::<T>()).max(1)).chain(last) {
        // SAFETY: as the caller promises, it is an item of the array.
        touch(unsafe { &*items.add(index) });
    }
}

/// Memory from the system.
#[cfg(all(target_os = "linux", not(miri)))]
mod pages {
    use super::LARGE_PAGE;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr;

    /// Maps `size` bytes of zeroes, a multiple of the granule, aligned to a large page; null if there is no room.
    pub(super) fn map(size: usize) -> *mut u8 {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, wherever the system has room, affects nothing that exists.
        let mapped = unsafe { mmap_anonymous(ptr::null_mut(), size + LARGE_PAGE, access, MapFlags::PRIVATE) };
        let Ok(base) = mapped else { return ptr::null_mut() };
        let base = base.cast::<u8>();
        let before = base.addr().next_multiple_of(LARGE_PAGE) - base.addr();
        // SAFETY: `before` is less than the large page that was asked for in addition, so what is kept lies within the
        // mapping; and nobody knows of what lies before and behind it.
        unsafe {
            unmap(base, before);
            unmap(base.add(before + size), LARGE_PAGE - before);
            base.add(before)
        }
    }

    /// # Safety
    /// The `size` bytes from `start` on, whole pages, must be mapped and not be used again.
    pub(super) unsafe fn unmap(start: *mut u8, size: usize) {
        if size > 0 {
            // SAFETY: as the caller promises. An error (too many mappings, or pages larger than the granule) leaves the
            // memory mapped, but unused.
            let _ = unsafe { munmap(start.cast(), size) };
        }
    }

    /// Asks the system for large pages.
    ///
    /// # Safety
    /// The `bytes` bytes from `start` on must be mapped.
    pub(super) unsafe fn prefer_large(start: *mut u8, bytes: usize) {
        // SAFETY: as the caller promises; the advice changes nothing that the pages hold.
        // An error says that this system has no large pages.
        let _ = unsafe { madvise(start.cast(), bytes, Advice::LinuxHugepage) };
    }
}

/// Never called.
#[cfg(not(all(target_os = "linux", not(miri))))]
mod pages {
    pub(super) fn map(_bytes: usize) -> *mut u8 {
        unreachable!("arrays come from the allocator")
    }

    pub(super) unsafe fn unmap(_start: *mut u8, _bytes: usize) {}

    pub(super) unsafe fn prefer_large(_start: *mut u8, _bytes: usize) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shard::Segments;
    use std::ptr;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn of_items<T: Default + Copy + PartialEq + std::fmt::Debug>(item: T) {
        let mapped = LARGE_PAGE / size_of::<T>();
        for len in [1, 1000, mapped - 1, mapped + 1, 2 * mapped] {
            // SAFETY: all-zero items are valid; and `free` comes last.
            unsafe {
                let items = allocate::<T>(len);
                assert!(items.addr().is_multiple_of(align_of::<T>().max(64)), "{len} at {items:?}");
                let some = [0, len / 2, len - 1].map(|index| items.add(index));
                assert_eq!(some.map(|place| *place), [T::default(); 3]);
                some.into_iter().for_each(|place| place.write(item));
                populate(items, len, 0..len, |_| {});
                assert_eq!(some.map(|place| *place), [item; 3]);
                free(items, len);
            }
        }
    }

    #[test]
    fn arrays_of_any_size_are_zeroed_and_aligned_and_keep_what_is_written() {
        #[derive(Clone, Copy, PartialEq, Default, Debug)]
        #[repr(align(256))]
        struct Wide(u8);
        of_items(7_u64);
        of_items([7_u64, 8, 9]);
        of_items(Wide(7));
    }

    /// The addresses of a mapping, from the line that begins with them.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn range_of(line: &str) -> Option<Range<usize>> {
        let (start, end) = line.split_once(' ')?.0.split_once('-')?;
        let bound = |text| usize::from_str_radix(text, 16).ok();
        Some(bound(start)?..bound(end)?)
    }

    /// What the system says under `title` about the mapping that an address lies in; `None` if it does not say.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn property(address: usize, title: &str) -> Option<String> {
        let text = std::fs::read_to_string("/proc/self/smaps").ok()?;
        let mut mapping = text.lines().skip_while(|line| !range_of(line).is_some_and(|range| range.contains(&address)));
        mapping.find_map(|line| line.strip_prefix(title)).map(|value| value.trim().to_owned())
    }

    /// True if large pages have been asked for at an address; `None` if the system does not say, or has none.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn prefers_large_pages<T>(address: *const T) -> Option<bool> {
        let has_some = std::path::Path::new("/sys/kernel/mm/transparent_hugepage").exists();
        let flags = has_some.then(|| property(address.addr(), "VmFlags:")).flatten()?;
        Some(flags.split(' ').any(|flag| flag == "hg"))
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn large_pages_are_asked_for_where_memory_is_wanted() {
        let per_page = LARGE_PAGE / size_of::<u64>();
        let len = 4 * per_page - 1;
        // SAFETY: all-zero items are valid; and `free` comes last.
        unsafe {
            let items = allocate::<u64>(len);
            assert!(items.addr().is_multiple_of(LARGE_PAGE));
            let asked_for = || [0, 1, 2, 3].map(|page| prefers_large_pages(items.add(page * per_page)));
            if asked_for().contains(&None) {
                return eprintln!("skipped: there are no large pages here");
            }
            assert_eq!(asked_for(), [Some(false); 4]);
            populate(items, len, 0..per_page + 1, |_| {});
            assert_eq!(asked_for(), [true, true, false, false].map(Some));
            populate(items, len, per_page + 1..2 * per_page, |_| {});
            assert_eq!(asked_for(), [true, true, false, false].map(Some));
            populate(items, len, 2 * per_page..len, |_| {});
            assert_eq!(asked_for(), [true, true, true, false].map(Some), "the last one is not all the array's");
            free(items, len);
            // A single one.
            let items = allocate::<u64>(per_page);
            populate(items, per_page, 0..per_page - 1, |_| {});
            assert_eq!(prefers_large_pages(items), Some(false), "in a small array none is wanted in part");
            populate(items, per_page, 0..per_page, |_| {});
            assert_eq!(prefers_large_pages(items), Some(true));
            free(items, per_page);
        }
    }

    // A test of `Segments`, but not in its file: models compile that file, and have memory behind everything.
    #[test]
    fn memory_is_had_for_one_segment_at_a_time() {
        let array = Segments::<AtomicU64>::new();
        // The first is too small.
        let populate = |indexes: Range<u32>| array.populate(indexes, |item| item.store(1, Ordering::Relaxed));
        assert_eq!(populate(0..1000), 1 << crate::sync::size::FIRST_SEGMENT_BITS);
        assert_eq!(populate(0..3), 3);
        assert_eq!(populate(1020..1030), 1024);
        assert_eq!(populate(1024..1030), 1030);
        // One item of each page, and the last.
        let touched = (0..5000).filter(|&index| array.reserve(index).load(Ordering::Relaxed) == 1);
        assert!(touched.eq([1020, 1023, 1024, 1029]));
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_segment_that_is_populated_has_large_pages_from_its_first_item_on() {
        let array = Segments::<AtomicU64>::new();
        // As an index populates what its next doubling adds, half of it first; the item before has been used already.
        let (first, half) = (1 << 19, 1 << 18);
        array.reserve(first - 1).store(1, Ordering::Relaxed);
        assert_eq!(array.populate(first..first + half, |_| {}), first + half);
        let asked_for =
            [first, first + half - 1, first + half].map(|index| prefers_large_pages(ptr::from_ref(array.at(index))));
        if asked_for.contains(&None) {
            return eprintln!("skipped: there are no large pages here");
        }
        assert_eq!(asked_for, [true, true, false].map(Some));
    }

    /// How many pages of an array have memory behind them, and how many there are; `None` if the system does not say.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn resident(items: *const u64, len: usize) -> Option<(usize, usize)> {
        use std::io::{Read, Seek, SeekFrom};
        let page = property(items.addr(), "KernelPageSize:")?.strip_suffix(" kB")?.parse::<usize>().ok()? << 10;
        let pages = len * size_of::<u64>() / page;
        let mut entries = vec![0; pages * size_of::<u64>()];
        let mut map = std::fs::File::open("/proc/self/pagemap").ok()?;
        map.seek(SeekFrom::Start((items.addr() / page * size_of::<u64>()) as u64)).ok()?;
        map.read_exact(&mut entries).ok()?;
        // In memory, or swapped out: the top bits of each entry, in the last of its bytes.
        let has_memory = |entry: &&[u8]| entry[7] & 0b1100_0000 != 0;
        Some((entries.chunks_exact(size_of::<u64>()).filter(has_memory).count(), pages))
    }

    /// An allocator that got as much memory back before would write to all of it.
    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn a_large_array_is_untouched_also_after_another_one_has_gone() {
        let len = 16 << 20 >> 3;
        for _ in 0..4 {
            // SAFETY: all-zero items are valid; and `free` comes last.
            unsafe {
                let items = allocate::<u64>(len);
                let Some((before, _)) = resident(items, len) else {
                    return eprintln!("skipped: the system does not say what has memory");
                };
                assert_eq!(before, 0);
                (0..len).for_each(|index| items.add(index).write(1));
                let (after, pages) = resident(items, len).expect("it said so before");
                assert_eq!(after, pages);
                free(items, len);
            }
        }
    }

    /// Whether there is memory at an address; `None` if the system does not say.
    #[cfg(all(target_os = "linux", not(miri)))]
    fn is_there(address: usize) -> Option<bool> {
        let text = std::fs::read_to_string("/proc/self/maps").ok()?;
        Some(text.lines().any(|line| range_of(line).is_some_and(|range| range.contains(&address))))
    }

    #[cfg(all(target_os = "linux", not(miri)))]
    #[test]
    fn what_is_freed_or_too_much_goes_back_to_the_system() {
        // No whole pages.
        let len = LARGE_ARRAY + 100;
        let size = layout::<u8>(len).size();
        // Whether memory is gone once it should be: behind the array, and at its first byte, a middle one, and the
        // last. Other tests may come to own the place meanwhile, but not every time.
        let mut gone = [false; 4];
        for _ in 0..100 {
            // SAFETY: all-zero items are valid; and `free` comes last.
            let first = unsafe {
                let items = allocate::<u8>(len);
                gone[0] |= is_there(items.addr() + size) == Some(false);
                free(items, len);
                items.addr()
            };
            for (gone, offset) in gone[1..].iter_mut().zip([0, size / 2, size - 1]) {
                match is_there(first + offset) {
                    Some(there) => *gone |= !there,
                    None => return eprintln!("skipped: the system does not say what is mapped"),
                }
            }
        }
        assert_eq!(gone, [true; 4]);
    }
}
