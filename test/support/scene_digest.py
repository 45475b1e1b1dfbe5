"""What a scene has, as numbers and hashes that fit in a small file.

``test/fixtures/*/*.expected.json`` were written by the versions that wrote the scenes, from what
these versions themselves had loaded.
"""

import hashlib

import numpy as np


def sha(*arrays):
    """A hash of arrays or bytes."""
    h = hashlib.blake2b(digest_size=8)
    for a in arrays:
        h.update(a if isinstance(a, bytes) else np.ascontiguousarray(a).tobytes())
    return h.hexdigest()


def pose(S):
    """A hash of a pose."""
    return sha(np.float64(S.scale), S.R, S.t)


def of_saved(saved):
    """The digest of a loaded scene."""
    rows = saved.poses.rows
    names = ("stamp_ns", "T", "K", "size", "submap", "camera", "keyframe")
    out = {
        "metric": saved.metric,
        "unit": saved.unit,
        "segment": saved.chain,
        "map": sha(saved.T_ros_map),
        "cameras": list(saved.poses.cameras),
        "poses": [len(rows), *(sha(rows[n]) for n in names)],
        "submaps": [
            [
                s.id,
                s.chain,
                s.keyframes,
                pose(s.T_map_submap),
                len(s.cloud),
                sha(s.cloud.xyz, s.cloud.rgb, s.cloud.confidence, s.cloud.count),
                [[c, t, sha(bytes(d))] for (c, t), d in s.images.items()],
            ]
            for s in saved.submaps
        ],
    }
    if saved.floor.views:  # of no folder
        out["floor"] = [saved.floor.resolution] + [
            [
                v.camera,
                v.stamp_ns,
                v.submap,
                sha(v.R_level_camera, np.float64([v.height, v.first, v.cell])),
                sha(v.free, v.marks),
            ]
            for v in saved.floor.views
        ]
    known = saved.recognition
    if known is not None:
        out["recognition"] = {
            "model": known.model,
            "nodes": [[n.first, n.last, n.guessed] for n in known.nodes],
            "edges": [
                [e.first, e.second, pose(e.measured), sha(e.sigma), e.loop] for e in known.edges
            ],
            "keyframes": [
                [
                    k.view.camera,
                    k.view.stamp_ns,
                    k.submap,
                    sha(k.K, k.T_submap_camera, k.descriptor, k.variance_in_submap),
                    pose(k.T_submap_saved),
                    sha(*k.loaded().arrays[1:]),
                ]
                for k in known.keyframes
            ],
            "places": {str(i): pose(T) for i, T in sorted(known.T_map_submap.items())},
        }
    return out


def of_stored(stored):
    """The digest of its stored keyframes."""
    out = {
        "frames": [
            [f.stamp_ns, f.camera, f.submap, sha(f.T_submap_camera, f.K), list(f.size), f.keyframe]
            for f in stored.frames
        ],
        "places": [
            [p.id, p.chain, p.component, pose(p.T_map_submap)] for p in stored.submaps.values()
        ],
        "map": [
            stored.map.metric,
            stored.map.scene_scale,
            stored.map.unit,
            sha(stored.map.T_ros_map),
        ],
        "images": [
            [
                k,
                sha(stored.image_data(k)),
                sha(one.depth, one.confidence),
                sha(one.tracks.ids, one.tracks.pixels),
            ]
            for k in stored.images
            for one in [stored.load(k)]
        ],
    }
    measured = {k: one for k in stored.images if (one := stored.load_measured(k)) is not None}
    if measured:
        out["measured"] = [
            [k, sha(one.depth, one.sigma, one.measured)] for k, one in measured.items()
        ]
    return out
