from my_utils.report.command import main

raise SystemExit(main())
