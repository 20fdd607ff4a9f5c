"""One adapter per dataset: where its files are, what its labels mean. All else is blind to the dataset."""

ADAPTERS = {
    "cholec80": ("cholec80:Cholec80", "Cholec80: 80 cholecystectomies, 7 phases."),
    "m2cai16": ("m2cai16:M2cai16", "M2CAI16-workflow: 41 cholecystectomies, 8 phases."),
    "cataract101": ("cataract101:Cataract101", "Cataract-101: 101 cataract operations, 10 phases."),
    "autolaparo": ("autolaparo:AutoLaparo", "AutoLaparo task 1: 21 hysterectomies, 7 phases."),
    "heichole": ("heichole:HeiChole", "HeiChole: 24 public cholecystectomies, 7 phases."),
    "heico": ("heico:HeiCo", "HeiCo: 30 colorectal operations, 14 phases."),
    "grasp": ("grasp:Grasp", "GraSP: 13 robot-assisted prostatectomies, 11 phases."),
    "custom": ("custom:Custom", "Your own videos with a phases.yaml and a label file per video."),
    "cholec80-tools": (
        "cholec80_tools:Cholec80Tools",
        "Cholec80's tool presence as 7 inputs, phases as labels (features).",
    ),
    "jigsaws": ("jigsaws:Jigsaws", "JIGSAWS kinematics and gestures, leave one user out (features)."),
    "features": ("features:Features", "Your own .npy or .npz features with labels."),
}
"""Dataset name: module and class below this package, and a line for the help."""
